"""Listening on a port, and what is said when that does not go."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tidemark.errors import CannotListen


@contextmanager
def listening_on(host: str, port: int) -> Iterator[None]:
    """Turn what the system says to an attempt to listen into CannotListen."""
    try:
        yield
    except OSError as error:
        # asyncio puts a sentence of its own around the system's.
        reason = error.strerror or str(error)
        raise CannotListen(
            f"cannot listen on port {port} of {host}: {reason}. Nothing was started.",
            "Stop who listens there (`ss -ltnp` says who), or configure another port.",
            host=host,
            port=port,
        ) from error
