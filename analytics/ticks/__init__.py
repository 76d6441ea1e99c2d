"""The complete ticks as a stream, which drives evaluation."""
