"""Shipped for the tests of mq's plugins. ``ports``: a free port that stays free until its server starts."""
