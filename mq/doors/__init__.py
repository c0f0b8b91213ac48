"""What every protocol on a socket shares, whatever protocol it speaks.

* ``listeners``: an address, or the path of a Unix socket, becomes listeners; accepting; TLS before anything else is
  said.
* ``standby``: standby daemons: they pass connections to the active one.
* ``readers``: connections take turns at being read, by the work that their bytes make.
* ``connections``: the peer at the other end, how many connections one address may have, and blocks that finish though a
  connection ends.
* ``open_connections``: the status of each connection, and a way to end it.
* ``exchanges``: what is declared over AMQP, as other protocols may show it.
* ``logins``: finds the user, and keeps the queue of passwords that wait to be checked.
* ``audit``: the log of logins and of changes to queues.
* ``budget``: the memory and the disk that clients of all protocols share; ``quotas``: limits of each user.
"""
