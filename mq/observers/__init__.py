"""Who is told of every transition, and what they make of it. The broker knows nothing of them.

:mod:`.metrics` counts. :mod:`.journal` writes everything down; that, :mod:`.journal_segments` and :mod:`.journal_rows`
need pyarrow, and are imported only where there is a journal.
"""
