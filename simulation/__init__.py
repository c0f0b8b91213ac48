"""The simulation: seeded runs of the real broker, endpoints and store over a disk that forgets; and its parts, which
other tests use.

* ``run``: what a seed draws, and its run. ``python -m simulation`` runs seeds.
* ``disk``: a disk that forgets what was not synced; ``faults``: what goes wrong with it, and when; ``stepped``: threads
  that work in turns with the event loop; ``calls``: system calls that are recorded, or fail when a test says so.
* ``clients``: clients over HTTP; ``users``: programs that embed the broker; ``claimants``: durable batch consumers;
  ``group_users``: users of message groups; ``write_job_users``: users of write jobs;
  ``schedule_users``: schedules, and a consumer of what they publish.
* ``history``: the promises P1 to P7, checked against what clients were told; ``expected``: what users expect;
  ``clock_ledger``: how far a start may believe a wrong wall clock.
"""
