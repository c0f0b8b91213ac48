"""Schedules: messages that are published regularly, by the clock. A client of the broker, as a door is.

* ``instants``: at which instants a schedule fires: cron lines in a time zone, or every so many seconds.
* ``schedule``: a schedule, and its record.
* ``scheduler``: keeps schedules, fires them, and keeps the last firing of each in few records; ``cluster_schedules``:
  those of a cluster, which its leader keeps.
"""
