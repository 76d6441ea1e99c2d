"""The read path: pulls, long polls, look-ups, and the visible range of queues and topics."""
