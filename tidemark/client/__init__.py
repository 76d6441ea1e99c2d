"""The asyncio client and its synchronous façade. It depends on formats only, not on the store.

``client.connect`` composes the parts. ``connection`` makes HTTP calls. ``producer`` sends:
``checks`` rejects invalid messages, ``batching`` decides when a batch is full or due, and ``turns``
shares the bounds fairly. ``consumer`` pulls. ``admin``, ``groups``, ``delayed``, ``dead_letters``
and ``trace`` are administrative calls. ``messages`` defines the messages sent and received, and
``retries`` defines which failed calls may be repeated.

A cluster has several broker groups. ``cluster`` keeps one ``broker_group`` of the parts above for
each, and the ``routes`` that ``route_calls`` fetches. One level above the parts,
``cluster_producer`` chooses a broker group for each message (``queue_choice``),
``cluster_consumer`` is a member at every one, and ``cluster_admin``, ``cluster_reads`` and
``cluster_groups`` make calls at all of them (``fan_out``). ``queue_names`` has the names of queues.
With a single broker, its parts are used directly.

``subscription`` is the public object of a group member, and ``consumer_engine`` runs its parts:
``member`` sends heartbeats, ``changes`` takes over and releases queues, ``fetching`` pulls
messages, ``committing`` commits the position, and ``handlers`` processes several messages at once.
The rules are pure modules: ``holdings`` (queues and their states), ``session_limit`` (until when
the member may deliver), ``progress`` (which messages are done), ``commits`` (which offsets to
commit and when), ``key_order`` (which message may be processed next), ``failures`` (what happens to
a message whose handler failed).
"""
