"""The asyncio client and its synchronous façade. Knows formats and HTTP, no files."""
