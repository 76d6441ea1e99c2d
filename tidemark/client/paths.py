"""Builds paths and queries of the API. Every part is quoted, so that no name changes the call.

Used by all modules that make calls.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from urllib.parse import quote, urlencode

from tidemark import errors


@lru_cache(maxsize=1024)
def path(*segments: str | int) -> str:
    """``/v1/…`` with every segment quoted: a topic may be called ``%RETRY%billing``.

    Raises BadName for a segment that cannot be part of a path.
    """
    quoted: list[str] = []
    for segment in map(str, segments):
        if segment in ("", ".", ".."):
            raise errors.BadName(
                f"{segment!r} is not a name. Nothing was sent.",
                "Names consist of letters, digits, %|_-.",
            )
        with utf8_only(errors.BadName, segment):
            quoted.append(quote(segment, safe=""))
    return "/v1/" + "/".join(quoted)


@contextmanager
def utf8_only(kind: type[errors.RequestError], what: str) -> Iterator[None]:
    """Raise ``kind`` for text that is not UTF-8, such as arbitrary bytes of a command line."""
    try:
        yield
    except UnicodeEncodeError as error:
        raise kind(f"{what!a} is not UTF-8 text: {error.reason}. Nothing was sent.") from None


def query_of(query: Mapping[str, object] | None) -> str:
    """``?name=value…`` without the values that are None; empty if none is left."""
    given = {name: value for name, value in (query or {}).items() if value is not None}
    return "?" + urlencode(given, quote_via=quote) if given else ""
