"""Tools for tests of mq, and of plugins for it: faults, checkers, the simulation. Shipped, for an author's tests.

* ``calls``: system calls that are recorded, or fail when a test says so.
* ``ports``: a free port that stays free until its server starts.
* ``simulate``: runs seeds; ``simulation``: what a seed draws, and its run of broker, endpoints and store.
* ``disk``: a disk that forgets what was not synced; ``faults``: what goes wrong with it, and when; ``stepped``: threads
  that work in turns with the event loop.
* ``clients``: clients over HTTP; ``users``: programs that embed the broker; ``claimants``: durable batch consumers;
  ``group_users``: users of message groups; ``write_job_users``: users of write jobs;
  ``schedule_users``: schedules, and a consumer of what they publish.
* ``history``: the promises P1 to P7, checked against what clients were told; ``expected``: what users expect;
  ``clock_ledger``: how far a start may believe a wrong wall clock.
"""
