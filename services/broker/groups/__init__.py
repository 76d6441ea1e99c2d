"""Consumer groups: who consumes what, how far they are, what is sent back."""
