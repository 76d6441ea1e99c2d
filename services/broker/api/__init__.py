"""The HTTP API: connections, request checks, handlers, answers, and the OpenAPI document."""
