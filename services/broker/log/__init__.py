"""From checked messages to bytes in the log that last: append, numbering, flushing, waiting."""
