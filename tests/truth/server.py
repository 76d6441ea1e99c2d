"""A workload as an exposition server on the loopback: /metrics of its processes at one instant.

    with ExpositionServer(truth) as server:
        server.show(tick)
        urlopen(server.url(targets(truth)[0]))

It serves each process under a path of its own, so one port is enough for a whole cluster.
"""

from __future__ import annotations

from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from types import TracebackType
from typing import Final, Self

from tests.truth.exposition import scrape
from tests.truth.samples import Target, targets
from tests.truth.workload import Truth

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


class ExpositionServer:
    """Answers as the processes of a workload would at the instant that was set last."""

    def __init__(self, truth: Truth, port: int = 0) -> None:
        """port: 0 takes a free one."""
        self._truth = truth
        self._at: int | None = None
        self._by_path = {_path(of): of for of in targets(truth)}
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                status, text = outer._answer(self.path)
                body = text.encode()
                self.send_response(status)
                self.send_header("Content-Type", CONTENT_TYPE)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                """Nothing: what is asked is the test's business."""

        self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self._thread = Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    @property
    def port(self) -> int:
        """Port on which it listens."""
        return int(self._server.server_address[1])

    def url(self, of: Target) -> str:
        """URL of one process."""
        return f"http://127.0.0.1:{self.port}{_path(of)}"

    def show(self, tick: int | None) -> None:
        """Answer from now on as at the sample of this tick; None: all answer 503."""
        self._at = None if tick is None else tick + self._truth.sample_delay

    def _answer(self, path: str) -> tuple[HTTPStatus, str]:
        of, at = self._by_path.get(path), self._at
        if of is None:
            return HTTPStatus.NOT_FOUND, "no such process\n"
        if at is None or at - self._truth.sample_delay in self._truth.missing:
            return HTTPStatus.SERVICE_UNAVAILABLE, "nothing is known at this instant\n"
        return HTTPStatus.OK, scrape(self._truth, of, at)


def _path(of: Target) -> str:
    return f"/{of.broker}/{of.node}/{of.service}/metrics"
