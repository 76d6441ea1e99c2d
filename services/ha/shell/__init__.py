"""Runs the effects of the core on sockets, files and threads, and feeds events back to it."""
