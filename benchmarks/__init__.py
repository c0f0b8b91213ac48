"""What mq costs: beside its peers, and beside a bare loop that does the same to the same files.

``make bench`` compares mq with its peers in a few minutes. Parts, or on a file system of your choice::

    python -m benchmarks compare --systems mq beanstalkd --root /mnt/disk
    python -m benchmarks embedded reference

Rates differ by a factor of two between runs and machines, so ratios of medians within one run count, and numbers that
are counted: system calls, flushes, processor time. No test fails because of a figure.

Beside its peers:

* :mod:`.suite`: the commands; :mod:`.page`, :mod:`.plots`: the page of their figures.
* :mod:`.compare`: mq and every peer that is installed, taking turns. :mod:`.clusters`: clusters of three nodes.
* :mod:`.turns`: one turn of one server. :mod:`.load`: the load generator. :mod:`.systems`: the servers.
* :mod:`.counts`: what the kernel counts of them. :mod:`.disks`: the disks that they store on.
* :mod:`.fair`: how long a client waits during another client's long job. :mod:`.spark`: queues in Spark.

By itself:

* :mod:`.embedded`: the rates of a broker inside a program, against the bare loop in the same group sizes.
* :mod:`.bare`: the bare loop. :mod:`.recorded`: a store that records its batches.
* :mod:`.reference`: the processor time of operations over AMQP, HTTP and SQS, against a synchronous server in memory,
  :mod:`.reference_server`.
* :mod:`.machine`, :mod:`.figures`: where it ran, and how figures are printed.
"""
