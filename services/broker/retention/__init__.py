"""Retention: which of the oldest log files go, when, and what goes unread with them."""
