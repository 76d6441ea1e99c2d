"""The ``tidemark`` command: noun, then verb. One module per noun; ``output`` prints results.

The exit status is 0 for success, 1 for failure, 2 for a usage error. Results go to standard output,
messages about them to standard error. It may import ``shared``, but no service: services are
started as ``python -m services.X``.
"""
