"""Listening on a port, and the error if that fails."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tidemark.errors import CannotListen


@contextmanager
def listening_on(host: str, port: int) -> Iterator[None]:
    """Turn an OSError of an attempt to listen into CannotListen."""
    try:
        yield
    except OSError as error:
        # asyncio's own message surrounds the system's text; only the latter is shown.
        reason = error.strerror or str(error)
        raise CannotListen(
            f"cannot listen on port {port} of {host}: {reason}. Nothing was started.",
            "Stop the process that listens there (`ss -ltnp` shows it), or use another port.",
            host=host,
            port=port,
        ) from error
