"""Stores that each break one promise, to see that the conformance checks notice.

Each is the memory store with one thing wrong, and names the check that is there to catch it.
"""
