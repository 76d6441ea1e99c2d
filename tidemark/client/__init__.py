"""The asyncio client, its sync façade, and nothing of the store: it knows formats only.

``client.connect`` composes the parts: ``connection`` speaks HTTP, ``producer`` sends (``checks``
refuses a bad message, ``batching`` says when a batch is full or due, ``turns`` shares its bounds),
``consumer`` pulls, ``admin``, ``groups``, ``delayed``,
``dead_letters`` and ``trace`` administrate, ``messages`` holds what comes and goes, ``retries``
says which failed call may be repeated.

A member of a group is ``subscription`` to the program and ``feed`` within: ``member`` beats,
``changes`` takes queues up and lets them go, ``fetching`` brings messages, ``committing`` tells how
far the program is, ``handlers`` works on several at once. Their rules are pure: ``holdings`` (which
queues, in which state), ``lease`` (until when), ``progress`` (what is done), ``commits`` (what is
told, and when), ``key_order`` (whose turn it is), ``failures`` (what becomes of one that failed).
"""
