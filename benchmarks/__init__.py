"""What mq costs, beside a bare loop that does the same to the same files.

Run all of it with ``make bench``, or some of it on a file system of your choice::

    python -m benchmarks --root /mnt/disk embedded backlog

Rates wander by a factor of two between runs and machines, so what counts here are ratios of medians, taken in turns
within one run, and numbers that are counted: system calls, flushes, wake-ups. Nothing here is a test.

* :mod:`.recorded`: a store that notes how its batches are made up, and counts its system calls.
* :mod:`.bare`: the bare loop.
* :mod:`.embedded`: the rates of a broker inside a program, against the bare loop in the same group sizes.
* :mod:`.backlog`: what a fetch costs in front of 200 and of 200,000 messages.
* :mod:`.counted`: system calls, device writes and flushes per message.
* :mod:`.idle`: how often a daemon with nothing to do wakes up.
* :mod:`.vsqs`: the brokerless queue beside the others in :mod:`.peers`, at the same durability.
* :mod:`.machine`, :mod:`.figures`, :mod:`.report`: where it ran, what came out, and how it is printed.
"""
