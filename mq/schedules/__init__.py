"""Schedules: messages that are published regularly, by the clock. A client of the broker, as a server is.

* ``schedule``: a schedule, its record, and the instants at which it fires: by a cron line in a time zone, or every so
  many seconds.
* ``scheduler``: keeps schedules, fires them, and keeps the last firing of each in few records; ``cluster_schedules``:
  those of a cluster, which its leader keeps.
"""
