"""Retention: which old log files are deleted, when, and which unread messages are lost with
them."""
