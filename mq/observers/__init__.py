"""Observers of the broker's transitions. The broker knows nothing of them.

* ``metrics``: counts, and how long things took; ``rates``: the last hour of a queue, in a ring.
* ``journal``: writes every transition down; ``journal_rows``: transitions as Arrow rows; ``journal_segments``: files of
  such rows, and their limits. These need pyarrow, and are imported only where there is a journal.
"""
