"""The SQS API: programs that speak to Amazon SQS, on the daemon's own port.

Its files, in reading order:

* ``door``: takes what is meant for SQS out of the HTTP server's requests, and answers it.
* ``protocol``: the two ways to ask and to answer, AWS JSON and AWS query; ``shapes``: what goes in and out, in either.
* ``actions``: an action (a line of the table), a call of it, and receives that are asked for again; ``queue_actions``,
  ``message_actions``: the lines, and what carries them out.
* ``attributes``: a queue's attributes as settings of mq; ``notes``: what of them mq has no setting for, and tags.
* ``messages``: a message between SQS and the broker, its digests and its receipt handles.
* ``move_tasks``: dead letters on their way back, in the background.
* ``signatures``: the check of a request's signature (AWS Signature Version 4).
* ``names``: URLs and ARNs of queues; ``errors``: errors by their names in SQS.
"""
