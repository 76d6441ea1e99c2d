"""HTTP calls, bodies and other instances: everything of the name service that does I/O."""
