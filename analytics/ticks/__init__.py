"""The ticks that are complete, as a stream: what drives evaluation."""
