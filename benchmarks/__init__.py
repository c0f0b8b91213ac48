"""What mq costs: beside its peers, and beside a bare loop that does the same to the same files.

``make bench`` takes a few minutes, ``make bench FULL=1`` up to half an hour. Parts of it, or on a file system of
your choice::

    python -m benchmarks compare --systems mq,beanstalkd --root /mnt/disk
    python -m benchmarks wanted counted ratios
    python -m benchmarks embedded backlog

Rates wander by a factor of two between runs and machines, so what counts here are ratios of medians, taken in turns
within one run, and numbers that are counted: system calls, flushes, wake-ups. Nothing here is a test.

Beside its peers:

* :mod:`.suite`: the commands; :mod:`.page`, :mod:`.plots`: what becomes of their figures.
* :mod:`.compare`: mq and every peer that is installed, taking turns; :mod:`.results`: what was measured so far.
* :mod:`.wanted`: the figures that mq is meant to reach, in parts; a part more is a function and a line of its table.
* :mod:`.turns`: one turn of one server. :mod:`.load`: the load generator. :mod:`.systems`: the servers.
* :mod:`.counts`: what the kernel counts of them. :mod:`.disks`: what they store on; :mod:`.slow_disk`: one whose flush
  takes its time.
* :mod:`.amqp`, :mod:`.clusters`: AMQP against RabbitMQ, one node and three. :mod:`.programs`: pika and aio-pika.
* :mod:`.beside`: publishes beside another program that writes. :mod:`.churn`: queues that come and go.
* :mod:`.profile`: where a daemon under load spends its time. :mod:`.fair`: how long others wait during long jobs.

By itself:

* :mod:`.recorded`: a store that notes how its batches are made up, and counts its system calls.
* :mod:`.bare`: the bare loop.
* :mod:`.embedded`: the rates of a broker inside a program, against the bare loop in the same group sizes.
* :mod:`.backlog`: what a fetch costs in front of 200 and of 200,000 messages.
* :mod:`.many`: what a million messages cost at a start, in time and memory.
* :mod:`.brokers`: several brokers on one root. :mod:`.groups`: message groups, beside a queue without.
* :mod:`.counted`: system calls, device writes and flushes per message.
* :mod:`.http`: the daemon to one client beside it. :mod:`.idle`: how often it wakes up with nothing to do.
* :mod:`.sqs`: the daemon's processor time for what SQS asks, beside the same over mq's own HTTP.
* :mod:`.journal`, :mod:`.claims`, :mod:`.spark`: the lifecycle journal, batch consumers, and queues in Spark.
* :mod:`.etcd`, :mod:`.postgres`: the stores of the plugins.
* :mod:`.vsqs`: the brokerless queue beside the others in :mod:`.peers`, at the same durability.
* :mod:`.machine`, :mod:`.figures`: where it ran, what came out, and how it is printed.
"""
