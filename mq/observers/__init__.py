"""Who is told of every transition, and what they make of it. The broker knows nothing of them."""
