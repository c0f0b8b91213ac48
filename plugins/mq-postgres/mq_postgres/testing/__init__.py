"""For tests: a PostgreSQL of one's own, and a wire that cuts."""
