"""Logs: one JSON object per line on standard error.

Every line has ``time`` (UTC, ms), ``level``, ``service``, ``event`` (stable, for machines),
``message`` (a short sentence, for people) and the facts given as ``extra``. One line per change of
state, none per record or request. Every event is listed in docs/logs.md; a test compares the two.
"""

from __future__ import annotations

import datetime
import json
import logging
import sys
import types
from typing import Final, TextIO

from tidemark.errors import TidemarkError

LIBRARY: Final = "library"
"""Event of a line that a library wrote; ``logger`` names the library."""
# These libraries log every attempt and every request; Tidemark's own lines report the outcome.
_TALKATIVE: Final = ("aiohttp.access", "aiohttp.server", "urllib3", "kubernetes_asyncio")
# Attributes that logging sets on every LogRecord; all others came in through `extra`.
_OWN: Final = frozenset(
    vars(logging.LogRecord("", 0, "", 0, "", (), None)).keys() | {"message", "asctime", "taskName"}
)


class JsonFormatter(logging.Formatter):
    """Formats a LogRecord as one JSON object."""

    def __init__(self, service: str) -> None:
        super().__init__()
        self._service = service

    def format(self, record: logging.LogRecord) -> str:
        """Return the line without a line end. Never raises, whatever types the facts have."""
        when = datetime.datetime.fromtimestamp(record.created, datetime.UTC)
        line: dict[str, object] = {
            "time": when.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "service": self._service,
            "event": getattr(record, "event", LIBRARY),
            "message": record.getMessage(),
        }
        if line["event"] == LIBRARY:
            line["logger"] = record.name
        own = frozenset(line)
        for name, value in vars(record).items():
            if name not in _OWN and name != "event":
                line[f"{name}_" if name in own else name] = value
        if record.exc_info and record.exc_info[1] is not None:
            error = record.exc_info[1]
            line["error"] = f"{type(error).__name__}: {error}"
            if isinstance(error, TidemarkError):
                line["code"] = error.code
            line["stack"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, default=str)


def configure(service: str, level: str = "info", stream: TextIO | None = None) -> None:
    """Send all logs of this process to stream (default: standard error) as JSON lines.

    Replaces handlers installed before, so that a second call does not print lines twice.
    """
    handler = logging.StreamHandler(sys.stderr if stream is None else stream)
    handler.setFormatter(JsonFormatter(service))
    root = logging.getLogger()
    for old in list(root.handlers):
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(level.upper())
    logging.captureWarnings(True)
    sys.excepthook = _log_uncaught
    for name in _TALKATIVE:
        logging.getLogger(name).setLevel(logging.ERROR)


def _log_uncaught(
    kind: type[BaseException], error: BaseException, trace: types.TracebackType | None
) -> None:
    """Log an uncaught exception with its traceback before the interpreter exits with status 1."""
    logging.getLogger(__name__).critical(
        "the process ends because of an unhandled error: %s",
        error,
        extra={"event": "uncaught"},
        exc_info=(kind, error, trace),
    )
