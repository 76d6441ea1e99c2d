"""The asyncio client, its sync façade, and nothing of the store: it knows formats only.

``client.connect`` composes the parts: ``connection`` speaks HTTP, ``producer`` sends (``batching``
says when a batch is full or due), ``consumer`` pulls, ``admin`` keeps topics, ``messages`` holds
what comes and goes, ``retries`` says which failed call may be repeated.
"""
