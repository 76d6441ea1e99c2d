"""An HTTP server that answers range selectors as Prometheus does, with faults on request.

    with RangeServer(samples, left_open=True) as server:
        server.trouble = [busy(503)]      # the next answers, one after another
        ...read from server.url...

It understands only the requests of the source: ``{matchers}[Nms]`` at a time, and a number.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Final, Self
from urllib.parse import parse_qs

import pyarrow as pa

Labels = tuple[tuple[str, str], ...]
Samples = Mapping[Labels, Sequence[tuple[int, float]]]
"""By series: (milliseconds since 1970, value)."""
Trouble = Callable[["Handler", bytes], None]
"""Answers instead of the server, given what the good answer would have been."""
_MATCHER: Final = re.compile(r'([a-zA-Z_]\w*)\s*(=~|!~|!=|=)\s*"((?:[^"\\]|\\.)*)"')
_RANGE: Final = re.compile(r"\{(.*)\}\[([0-9]+)ms\]", re.DOTALL)


class Handler(BaseHTTPRequestHandler):
    """One request."""

    server: RangeServer

    def do_POST(self) -> None:
        """A query."""
        size = int(self.headers["Content-Length"])
        fields = {
            name: found[0] for name, found in parse_qs(self.rfile.read(size).decode()).items()
        }
        self.answer_to(fields)

    def do_GET(self) -> None:
        """Answer any GET as the query ``1``."""
        self.answer_to({"query": "1"})

    def answer_to(self, fields: Mapping[str, str]) -> None:
        """The good answer, or what trouble makes of it."""
        owner = self.server
        with owner.lock:
            owner.asked.append(dict(fields))
            trouble = owner.trouble.pop(0) if owner.trouble else owner.always
        status, body = owner.answer(fields)
        if trouble is not None:
            trouble(self, body)
        else:
            self.say(status, body)

    def say(self, status: int, body: bytes, *, length: int | None = None) -> None:
        """Send an answer; length: the announced size, if it is not the true one."""
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body) if length is None else length))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""


def status(code: int, error: str = "", kind: str = "unavailable") -> Trouble:
    """Answer with an error, as Prometheus puts it."""
    body = json.dumps({"status": "error", "errorType": kind, "error": error}).encode()
    return lambda handler, _: handler.say(code, body)


def text(code: int, body: bytes) -> Trouble:
    """Answer with these bytes."""
    return lambda handler, _: handler.say(code, body)


def cut(handler: Handler, body: bytes) -> None:
    """Send half of the good answer, and close."""
    handler.say(200, body[: len(body) // 2], length=len(body))


def reset(handler: Handler, body: bytes) -> None:
    """Close without an answer."""
    handler.close_connection = True


def warning(handler: Handler, body: bytes) -> None:
    """Half of the series are missing, and the answer says that something is."""
    answer = json.loads(body)
    if "result" in answer["data"]:
        answer["data"]["result"] = answer["data"]["result"][::2]
    answer["warnings"] = ["a store gateway is down"]
    handler.say(200, json.dumps(answer, separators=(",", ":")).encode())


def slow(delay_s: float) -> Trouble:
    """Delay the answer; usually the client has gone by then."""

    def wait(handler: Handler, body: bytes) -> None:
        if not handler.server.closing.wait(delay_s):
            handler.say(200, body)

    return wait


def drip(handler: Handler, body: bytes) -> None:
    """Send a byte every 20 ms: no read times out, but the whole answer takes too long."""
    handler.send_response(200)
    handler.send_header("Content-Length", str(len(body)))
    handler.end_headers()
    for at in range(len(body)):
        if handler.server.closing.wait(0.02):
            return
        try:
            handler.wfile.write(body[at : at + 1])
        except OSError:
            return


class RangeServer(ThreadingHTTPServer):
    """Serves samples on a free port of the loopback. In a thread."""

    daemon_threads = True

    def __init__(
        self, samples: Samples, *, left_open: bool = False, samples_max: int | None = None,
        spaced: bool = False, port: int = 0,
    ) -> None:  # fmt: skip
        """left_open: a range excludes its start, as in Prometheus since 3.0. samples_max: an answer
        with more samples is refused. spaced: the JSON has blanks, as a proxy may write it."""
        super().__init__(("127.0.0.1", port), Handler)
        self.samples = samples
        self.left_open = left_open
        self.samples_max = samples_max
        self.spaced = spaced
        self.trouble: list[Trouble | None] = []
        self.always: Trouble | None = None
        self.asked: list[dict[str, str]] = []
        self.lock = threading.Lock()
        self.closing = threading.Event()
        self.url = f"http://127.0.0.1:{self.server_address[1]}"

    def __enter__(self) -> Self:
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(
        self,
        *of: type[BaseException] | BaseException | TracebackType | None,
    ) -> None:
        self.closing.set()
        self.shutdown()
        self.server_close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that has gone is what is tested here."""

    def answer(self, fields: Mapping[str, str]) -> tuple[int, bytes]:
        """Status and body of the good answer."""
        found = _RANGE.fullmatch(fields["query"])
        if found is None:
            scalar = {"resultType": "scalar", "result": [time.time(), fields["query"]]}
            return 200, json.dumps({"status": "success", "data": scalar}).encode()
        end_ms = round(float(fields["time"]) * 1000)
        start_ms = end_ms - int(found[2])
        result = []
        for labels, values in self.samples.items():
            if not _matches(found[1], dict(labels)):
                continue
            kept = [
                [ms / 1000, _written(value)]
                for ms, value in values
                if (start_ms < ms if self.left_open else start_ms <= ms) and ms <= end_ms
            ]
            if kept:
                result.append({"metric": dict(labels), "values": kept})
        count = sum(len(each["values"]) for each in result)
        if self.samples_max is not None and count > self.samples_max:
            error = "query processing would load too many samples into memory in query execution"
            body = json.dumps({"status": "error", "errorType": "execution", "error": error})
            return 422, body.encode()
        data = {"status": "success", "data": {"resultType": "matrix", "result": result}}
        separators = (", ", ": ") if self.spaced else (",", ":")
        return 200, json.dumps(data, separators=separators).encode()


def _written(value: float) -> str:
    return (
        repr(value)
        .replace("inf", "Inf")
        .replace("nan", "NaN")
        .replace("Inf", "+Inf")
        .replace("-+Inf", "-Inf")
    )


def _matches(matchers: str, labels: Mapping[str, str]) -> bool:
    for name, kind, quoted in _MATCHER.findall(matchers):
        value = labels.get(name, "")
        wanted = json.loads(f'"{quoted}"')
        hit = value == wanted if kind in ("=", "!=") else bool(re.fullmatch(wanted, value))
        if hit == kind.startswith("!"):
            return False
    return True


def served(samples: pa.Table) -> dict[Labels, list[tuple[int, float]]]:
    """The samples as a server of Prometheus holds them."""
    found: dict[Labels, list[tuple[int, float]]] = {}
    for row in samples.to_pylist():
        labels = {
            "__name__": row["metric"],
            "instance": row["target"],
            "job": f"tidemark-{row['service']}",
            **{n: row[n] for n in ("cluster", "broker", "replica", "service")},
            **{n: str(row[n]) for n in ("group", "topic", "queue") if row[n] is not None},
            **dict(pair.replace('"', "").split("=") for pair in row["labels"].split(",") if pair),
        }
        at = round(row["ts"].timestamp() * 1000)
        found.setdefault(tuple(sorted(labels.items())), []).append((at, row["value"]))
    return found
