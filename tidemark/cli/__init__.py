"""The ``tidemark`` command: noun, then verb. One module per noun; ``output`` for what they print.

Exit status: 0 done, 1 failed, 2 not understood. Results go to standard output, everything said
about them to standard error. May import ``shared``, never a service: services are started as
``python -m services.X``.
"""
