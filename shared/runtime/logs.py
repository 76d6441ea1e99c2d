"""Logs: one JSON object per line on standard error.

Every line has ``time`` (UTC, ms), ``level``, ``service``, ``event`` (stable, for machines),
``message`` (a short sentence, for people) and the facts given as ``extra``. One line per change of
state, none per record.
"""

from __future__ import annotations

import datetime
import json
import logging
import sys
import types
from typing import Final, TextIO

from tidemark.errors import TidemarkError

# What logging puts on every LogRecord; whatever else is there came in through `extra`.
_OWN: Final = frozenset(
    vars(logging.LogRecord("", 0, "", 0, "", (), None)).keys() | {"message", "asctime", "taskName"}
)


class JsonFormatter(logging.Formatter):
    """Formats a LogRecord as one JSON object."""

    def __init__(self, service: str) -> None:
        super().__init__()
        self._service = service

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, without a line end; never raises on odd facts."""
        when = datetime.datetime.fromtimestamp(record.created, datetime.UTC)
        line: dict[str, object] = {
            "time": when.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "service": self._service,
            "event": getattr(record, "event", record.name),
            "message": record.getMessage(),
        }
        for name, value in vars(record).items():
            if name not in _OWN and name not in line:
                line[name] = value
        if record.exc_info and record.exc_info[1] is not None:
            error = record.exc_info[1]
            line["error"] = f"{type(error).__name__}: {error}"
            if isinstance(error, TidemarkError):
                line["code"] = error.code
            line["stack"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, default=str)


def configure(service: str, level: str = "info", stream: TextIO | None = None) -> None:
    """Send all logs of this process to stream (default: standard error) as JSON lines.

    Replaces handlers installed before, so that calling it twice does not print lines twice.
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
    # One line per HTTP request is one line per message on the produce path.
    logging.getLogger("aiohttp.access").setLevel(logging.WARNING)


def _log_uncaught(
    kind: type[BaseException], error: BaseException, trace: types.TracebackType | None
) -> None:
    """Log what nobody caught, traceback included, before the interpreter ends with status 1."""
    logging.getLogger(__name__).critical(
        "the process ended by an error nobody handles: %s",
        error,
        extra={"event": "uncaught"},
        exc_info=(kind, error, trace),
    )
