"""For tests and benchmarks: a memcached of their own, and a wire on which a client dies after so many commands."""
