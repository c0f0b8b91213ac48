"""The HTTP door: its files, in reading order.

* ``exchange``: a request and a reply as plain values.
* ``operations``: an operation, a line of the table: path, right, handler, description.
* ``endpoints``: the table of all operations, the router, and :class:`Endpoints`: a request in, a reply out. The
  handlers and their lines: ``admin_operations``, ``connection_operations``, ``queue_operations``,
  ``rate_operations``, ``message_operations``, ``consumer_operations``, ``exchange_operations``,
  ``schedule_operations``, ``page_operations``.
* ``prometheus``: what Prometheus scrapes.
* ``page_operations``: for people who look on. ``page_files``: the page itself, from ``page/``;
  ``overview``, ``events``: what it shows, and what changes of that; ``previews``: the beginnings of messages;
  ``sessions``: who has logged in.
* ``openapi``: the table described for programs; ``schemas``: what goes in and out as JSON.
* ``parameters``: query and headers, checked; ``request_body``: the body, as it arrives.
* ``trace_context``: the trace that a publish belongs to, kept with its messages.
* ``batches``: many messages in one body, parsed and written; its formats: ``json_lines``, ``json_array``,
  ``multipart``.
* ``replies``: one message as a reply; ``pages``: many of them, out of a budget of memory.
* ``refusals``: the status of each error, and the refusals of malformed requests.
* ``hang_ups``: requests that wait for messages, and clients that hang up meanwhile.
* ``authorizer``: stands before the endpoints: users, rights, audit log; ``browser_guard``: refuses what other web pages
  ask for.
* ``request_log``: a line for each request, where that is wanted.
* ``http_connection``: a connection as operators see it: its user, its waiting requests.
* ``watched_stream``: a connection that ends once its client is silent for too long.
* ``fast_http1``: plain HTTP/1.1 requests, served straight on the stream.
* ``app``: all others, as a Quart-Trio app; ``hypercorn_server``: Hypercorn's connection, with limits of its own.
* ``serve``: listens, accepts, stops.
"""
