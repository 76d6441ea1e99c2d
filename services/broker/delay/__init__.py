"""Messages that wait: placed at their send, delivered when they are due, listed, cancelled."""
