"""From a request to messages: pulls, held pulls, look-ups, what queues and topics show."""
