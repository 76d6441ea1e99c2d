"""Checks the types of the arguments of ``connect``, so that an error names the argument. Pure."""

from __future__ import annotations

import inspect
import ssl
from collections.abc import Collection, Iterable, Mapping
from numbers import Integral, Real
from typing import Any

from tidemark.client.batching import Limits


def check_options(given: Mapping[str, Any]) -> None:
    """Raise TypeError for the first argument of a wrong type. given: all arguments by name."""
    _check_url(given["url"])
    for name in ("linger_ms", "retry_for_s", "request_timeout_s"):
        if given[name] is not None or name != "request_timeout_s":
            _check_number(given[name], name)
    _check_limits(given["limits"])
    _check(isinstance(given["read_from"], str), "read_from", "a string", given["read_from"])
    _check_optional(given, "trace", "a string", str)
    _check_optional(given, "headers", "a map of strings", Mapping)
    for name, value in (given["headers"] or {}).items():
        _check(isinstance(name, str), "a name in headers", "a string", name)
        _check(isinstance(value, str), f"headers[{name!r}]", "a string", value)
    _check_optional(given, "ssl", "an ssl.SSLContext", ssl.SSLContext)
    for name in ("on_connected", "on_disconnected"):
        _check_callback(given[name], name)


def _check_url(url: object) -> None:
    if isinstance(url, str):
        return
    is_list = isinstance(url, Iterable) and not isinstance(url, bytes | bytearray | Mapping)
    _check(is_list, "url", "a string or a list of strings", url)
    if isinstance(url, Collection):  # an iterator can be read only once
        for index, each in enumerate(url):
            _check(isinstance(each, str), f"url[{index}]", "a string", each)


def _check_limits(limits: object) -> None:
    if limits is None:
        return
    if not isinstance(limits, Limits):
        raise TypeError(f"limits must be tidemark.Limits(…), not {type(limits).__name__}")
    for name, value in limits._asdict().items():
        _check_number(value, f"limits.{name}", whole=name != "linger_ms")


def _check_callback(callback: object, name: str) -> None:
    """Raise TypeError unless it is None or can be called; its result is not awaited."""
    _check(callback is None or callable(callback), name, "a function", callback)
    call = inspect.getattr_static(callback, "__call__", None)
    if inspect.iscoroutinefunction(callback) or inspect.iscoroutinefunction(call):
        raise TypeError(f"{name} must be a plain function, not a coroutine function")


def _check_number(value: object, name: str, *, whole: bool = False) -> None:
    """Numbers of other libraries count, such as those of NumPy."""
    is_number = isinstance(value, Integral if whole else Real) and not isinstance(value, bool)
    _check(is_number, name, "a whole number" if whole else "a number", value)


def _check_optional(given: Mapping[str, Any], name: str, what: str, kind: type) -> None:
    _check(given[name] is None or isinstance(given[name], kind), name, what, given[name])


def _check(holds: bool, name: str, what: str, value: object) -> None:
    if not holds:
        raise TypeError(f"{name} must be {what}, not {type(value).__name__}")
