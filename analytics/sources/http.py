"""One HTTP request with limits of time and size: the whole answer, or the reason for its absence.

The time limit includes the connection and the last byte, so a slow server cannot hold a reader
longer. Step before: a source asks. Step after: it parses, or reports a gap.
"""

from __future__ import annotations

import http.client
import time
from collections.abc import Mapping
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from analytics.schema import Gap
from analytics.sources.gaps import Unanswered

CHUNK: Final = 1 << 18


class Answer(NamedTuple):
    """Answer of a server."""

    status: int
    content_type: str
    body: bytes


def fetch(
    url: str,
    *,
    timeout_s: float,
    size_max: int,
    headers: Mapping[str, str],
    body: bytes | None = None,
) -> Answer:
    """Make one request: GET, or POST with a body.
    size_max: bytes of the answer. Raises Unanswered: unreachable; timeout; torn, if the answer is
    truncated; overload, if it is larger."""
    deadline = time.monotonic() + timeout_s
    parts = urlsplit(url)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = kind(parts.hostname or "", parts.port, timeout=timeout_s)
    path = parts.path or "/"
    try:
        connection.connect()
        sock = connection.sock
        sock.settimeout(max(0.001, deadline - time.monotonic()))
        connection.request(
            "GET" if body is None else "POST",
            path + (f"?{parts.query}" if parts.query else ""),
            body=body,
            headers={"Connection": "close", **headers},
        )
        response = connection.getresponse()
        pieces: list[bytes] = []
        size = 0
        while True:
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                raise Unanswered(Gap.TIMEOUT, f"the answer was incomplete after {timeout_s:g} s")
            sock.settimeout(left_s)
            piece = response.read1(CHUNK)
            if not piece:
                break
            size += len(piece)
            if size > size_max:
                raise Unanswered(Gap.OVERLOAD, f"the answer is larger than {size_max} bytes")
            pieces.append(piece)
        # read1 does not report that an answer of known length was truncated
        if response.length:
            raise Unanswered(Gap.TORN, f"{response.length} bytes of the answer are missing")
        content_type = response.getheader("Content-Type") or ""
        return Answer(response.status, content_type, b"".join(pieces))
    except TimeoutError as error:
        raise Unanswered(Gap.TIMEOUT, f"no answer within {timeout_s:g} s") from error
    except http.client.IncompleteRead as error:
        raise Unanswered(Gap.TORN, "the answer ended early") from error
    except (ConnectionResetError, BrokenPipeError, http.client.HTTPException) as error:
        raise Unanswered(Gap.TORN, f"{type(error).__name__}: {error}") from error
    except (OSError, UnicodeError) as error:  # UnicodeError: an invalid host name, like a..b
        raise Unanswered(Gap.UNREACHABLE, f"{type(error).__name__}: {error}") from error
    finally:
        connection.close()
