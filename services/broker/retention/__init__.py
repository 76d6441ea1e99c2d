"""Retention: which old log files are deleted, when, and with which unread messages."""
