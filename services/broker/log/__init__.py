"""The write path: assigns queue offsets, appends, flushes, and waits for durability."""
