"""From checked messages to an answer: queue choice, append, acknowledgement level, repeats."""
