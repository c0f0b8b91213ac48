"""The checks that :mod:`mq.storage.conformance` is made of: one promise of the interface each, one subject a module.

They use the verbs of the interface and nothing else, so they hold for any store. A check takes an open store on a
fresh place; those in :mod:`.reopening` open it themselves, twice. What they have in common is in :mod:`.kit`.
"""
