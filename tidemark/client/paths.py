"""Paths and queries of the API: every part quoted, so that no name reaches another call.

Used by all that make calls.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from urllib.parse import quote, urlencode

from tidemark import errors


def path(*segments: str | int) -> str:
    """``/v1/…`` with every segment quoted: a topic may be called ``%RETRY%billing``.

    Raises BadName for what cannot stand in a path, so that it does not reach another call.
    """
    quoted: list[str] = []
    for segment in map(str, segments):
        if segment in ("", ".", ".."):
            raise errors.BadName(
                f"{segment!r} is no name. Nothing was sent.", "Names are letters, digits, %|_-."
            )
        with utf8_only(errors.BadName, segment):
            quoted.append(quote(segment, safe=""))
    return "/v1/" + "/".join(quoted)


@contextmanager
def utf8_only(kind: type[errors.RequestError], what: str) -> Iterator[None]:
    """Text from a command line may hold bytes that are no text; the wire cannot."""
    try:
        yield
    except UnicodeEncodeError as error:
        raise kind(f"{what!a} is not UTF-8 text: {error.reason}. Nothing was sent.") from None


def query_of(query: Mapping[str, object] | None) -> str:
    """``?name=value…``; what is None is left out. Empty if nothing is left."""
    given = {name: value for name, value in (query or {}).items() if value is not None}
    return "?" + urlencode(given, quote_via=quote) if given else ""
