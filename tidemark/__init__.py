"""Tidemark: the public package. Everything that a user's program imports."""
