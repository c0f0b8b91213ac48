"""The HTTP server: its files, in reading order.

* ``exchange``: a request and a reply as plain values, and what answers a request: a handler.
* ``operations``: an operation, a line of the table: path, right, handler, description.
* ``endpoints``: the table of all operations, the router, and :class:`Endpoints`: a request in, a reply out. It finds
  the operation of a head once; guards that have nothing to say to a head leave themselves out of its way. The
  handlers and their lines: ``admin_operations``, ``queue_operations``, ``message_operations``, ``consumer_operations``,
  ``write_operations``, ``exchange_operations``, ``schedule_operations``, ``cluster_operations``, ``page_operations``.
* ``prometheus``: what Prometheus scrapes.
* ``page_operations``: what the page for people asks for. ``page_files``: the page itself, from ``page/``;
  ``overview``, ``events``: what it shows, and what changes of that; ``login_sessions``: the users that have logged in.
* ``openapi``: the table described for programs; ``schemas``: what goes in and out as JSON.
* ``parameters``: query and headers, checked, and the trace of a publish; ``request_body``: the body, as it arrives.
* ``batches``: many messages in one body, parsed and written; its formats: ``json_lines``, ``multipart``.
* ``replies``: one message as a reply, and many of them, out of a budget of memory; ``columns``: as columns;
  ``json_answer``: long lists, for which memory is reserved part by part.
* ``refusals``: the status of each error, and the refusals of malformed requests.
* ``front``: stands before every handler: a line for each request, where that is wanted; refuses what other web pages
  ask for. ``authorizer``: stands before the endpoints: users, rights, audit log. ``proxies``: stands before all
  guards: the base path, and what trusted proxies report of a client.
* ``http_connection``: a connection: its stream, which ends once its client is silent for too long, its user, its
  waiting requests, and when its client hangs up.
* ``fast_http1``: plain HTTP/1.1 requests, served straight on the socket.
* ``app``: all others, as a Quart-Trio app; ``hypercorn_server``: Hypercorn's connection, with limits of its own;
  ``http2_requests``: the requests of one over HTTP/2, which begin in the step that read them, or end with their
  streams.
* ``serve``: listens, accepts, stops.
"""
