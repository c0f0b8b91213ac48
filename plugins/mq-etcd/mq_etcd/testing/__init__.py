"""For tests and benchmarks: an etcd of their own, and a wire that loses replies."""
