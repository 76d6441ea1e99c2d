"""Checks the types of the arguments of ``connect``, so that an error names the argument. Pure."""

from __future__ import annotations

import ssl
from collections.abc import Iterable, Mapping
from typing import Any

from tidemark.client.batching import Limits


def check_options(given: Mapping[str, Any]) -> None:
    """Raise TypeError for the first argument of a wrong type. given: all arguments by name."""
    _check_url(given["url"])
    for name in ("linger_ms", "retry_for_s", "request_timeout_s"):
        value = given[name]
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        _check(
            is_number or (value is None and name == "request_timeout_s"), name, "a number", value
        )
    _check_limits(given["limits"])
    _check(isinstance(given["read_from"], str), "read_from", "a string", given["read_from"])
    _check_optional(given, "trace", "a string", str)
    _check_optional(given, "headers", "a map of strings", Mapping)
    for name, value in (given["headers"] or {}).items():
        _check(isinstance(name, str), "a name in headers", "a string", name)
        _check(isinstance(value, str), f"headers[{name!r}]", "a string", value)
    _check_optional(given, "ssl", "an ssl.SSLContext", ssl.SSLContext)
    for name in ("on_connected", "on_disconnected"):
        callback = given[name]
        _check(callback is None or callable(callback), name, "a function", callback)


def _check_url(url: object) -> None:
    if isinstance(url, str):
        return
    is_list = isinstance(url, Iterable) and not isinstance(url, bytes | bytearray | Mapping)
    _check(is_list, "url", "a string or a list of strings", url)
    if isinstance(url, list | tuple):
        for index, each in enumerate(url):
            _check(isinstance(each, str), f"url[{index}]", "a string", each)


def _check_limits(limits: object) -> None:
    if limits is None:
        return
    if not isinstance(limits, Limits):
        raise TypeError(f"limits must be tidemark.Limits(…), not {type(limits).__name__}")
    for name, value in limits._asdict().items():
        kinds = int | float if name == "linger_ms" else int
        is_number = isinstance(value, kinds) and not isinstance(value, bool)
        _check(is_number, f"limits.{name}", "a number", value)


def _check_optional(given: Mapping[str, Any], name: str, what: str, kind: type) -> None:
    _check(given[name] is None or isinstance(given[name], kind), name, what, given[name])


def _check(holds: bool, name: str, what: str, value: object) -> None:
    if not holds:
        raise TypeError(f"{name} must be {what}, not {type(value).__name__}")
