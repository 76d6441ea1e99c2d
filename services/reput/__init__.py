"""Reput: dispatches the commit log into consume queues and index files."""
