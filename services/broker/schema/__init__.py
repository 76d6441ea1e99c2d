"""The HTTP contract: what callers may send and what they get, as msgspec structs. Pure.

Each module has the requests, the answers and the calls of one theme. The checks of requests
(``parsing``), their errors (``mistakes``) and the OpenAPI document (``api.api_document``) come from
these structs.
"""
