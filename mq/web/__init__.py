"""The HTTP door, best read in this order.

* :mod:`mq.web.exchange`: a request and a reply, as plain values.
* :mod:`mq.web.operations`: what an endpoint is: a line of a table, with all that can be said of it.
* :mod:`mq.web.endpoints`: from a request to a reply, and nothing else: no sockets, no framework. What each of them
  does is in :mod:`mq.web.administering`, ``queues``, ``publishing``, ``consuming`` and ``looking``.
* :mod:`mq.web.openapi`: the same lines, described for programs; :mod:`mq.web.schemas`: what goes in and out as JSON.
* :mod:`mq.web.parameters`, ``incoming``, ``batches``, ``multipart``: what a request says; ``waits``: those who
  wait for a message; ``replies``, ``errors``: what is said to them.
* :mod:`mq.web.access`: stands before them where users are known, and asks for the right.
* :mod:`mq.web.arriving`: a body, taken from the network no faster than it is used.
* :mod:`mq.web.app`: the two of them as a Quart-Trio app.
* :mod:`mq.web.frames`: how much of what an HTTP/2 client may send.
* :mod:`mq.web.refusals`: what is refused before an endpoint sees it.
* :mod:`mq.web.guarded`: Hypercorn's server of one connection, with these limits and refusals.
* :mod:`mq.web.serve`: Hypercorn on a socket, and how it stops.
"""
