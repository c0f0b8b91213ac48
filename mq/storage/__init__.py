"""Stores: the interface (:mod:`.interface`), the way to find one (:mod:`.registry`), and those that ship with mq."""
