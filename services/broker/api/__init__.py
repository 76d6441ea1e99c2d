"""The HTTP API: connections, checks of requests, calls, answers; the document of all calls."""
