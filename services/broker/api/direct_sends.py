"""Serves plain sends from the bytes of their connection to the bytes of their answer.

aiohttp's request, task and response take more time than a small send itself. ``connections``
recognises a plain send and passes it on here; what this module does not serve goes to aiohttp, with
nothing stored. Requests, answers, errors and metrics are those of the general path. ``connections``
comes before this step; after it ``send`` reads the body (write path, steps 1 and 2). The answer is
made here (step 6).
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Awaitable, Sequence
from email.utils import formatdate
from http import HTTPStatus
from typing import Final, NamedTuple

from aiohttp.http import SERVER_SOFTWARE

from services.broker.api import encodings
from services.broker.api.connections import ApiHandler, PlainSend
from services.broker.api.encodings import Encoding
from services.broker.api.http_requests import Bodies, Body
from services.broker.api.refusals import Refusals, retry_after
from services.broker.api.request_head import SendHead
from services.broker.api.send import SendCall, packed
from services.broker.request_classes import RequestClass, RequestClasses
from services.broker.send.deduplicator import RepeatCount
from services.broker.send.send_result import result_of
from services.broker.send.sender import AppendedSend, Outcome
from services.broker.traffic_metrics import TrafficMetrics
from shared.runtime.connections import error_fields
from tidemark.clock import Clock
from tidemark.errors import Overloaded, TidemarkError

GATHERED_SIZE_MAX: Final = 1 << 16
"""Bytes of requests that are appended together. One of more than a quarter begins no gathering: the
saving is one append, and its bytes are in the CPU's caches when it arrives."""
GATHERED_WITHIN_S: Final = 0.0005
"""Sends are gathered if another connection's send arrived within this time. Otherwise a send is
appended at once: to wait for others would cost it a turn of the event loop."""
_OK: Final = HTTPStatus.OK
_HEAD: Final = (
    "HTTP/1.1 {} {}\r\nContent-Type: {}\r\nContent-Length: {}\r\nDate: {}\r\nServer: {}\r\n{}\r\n"
)


class WaitingSend(NamedTuple):
    """A plain send whose messages are appended and do not have their level yet."""

    head: SendHead
    appended: AppendedSend
    level: asyncio.Future[bool]
    """From ``Sender.wait``."""
    body: Body
    """Memory that is counted for it."""
    number: int
    """Its number among the sends in progress."""
    started: float
    """When it began, on the monotonic clock [s]."""


class Turn:
    """The sends that arrived in one turn of the event loop, or as many of them as are appended
    together."""

    __slots__ = ("end", "repeats", "sends", "size", "started")

    def __init__(self, end: asyncio.Future[None], repeats: RepeatCount, started: float) -> None:
        self.end = end
        """Done when each connection has got its answer."""
        self.repeats = repeats
        """Count of repeated sends when the first send arrived."""
        self.started = started
        """When the first send arrived, on the monotonic clock [s]."""
        self.sends: list[PlainSend] = []
        self.size = 0
        """Bytes of the requests."""


class DirectSends:
    """The plain sends of all connections. For the event loop."""

    def __init__(
        self,
        call: SendCall,
        bodies: Bodies,
        refusals: Refusals,
        request_classes: RequestClasses,
        metrics: TrafficMetrics,
        clock: Clock,
    ) -> None:
        self._call = call
        self._bodies = bodies
        self._refusals = refusals
        self._request_classes = request_classes
        self._puts = request_classes.of[RequestClass.PUT]
        self._put_results = metrics.put_results
        self._duration = metrics.request_duration.labels("send")
        self._batch_duration = metrics.request_duration.labels("send-batch")
        self._monotonic = clock.monotonic
        self._turn: Turn | None = None
        self._last_connection: ApiHandler | None = None
        self._last_at = float("-inf")
        """When the last send arrived, on the monotonic clock [s]."""
        self.body_size_max: Final = bodies.size_max
        """Bytes of a body; a longer one is refused."""

    def repeats_so_far(self) -> RepeatCount:
        """Return the count of repeated sends until now."""
        return self._call.repeats_so_far()

    def hold(self, held: Body | None, data: bytes, peer: str | None) -> Body | None:
        """Count the memory of a send of which data has arrived; None: there is no room.

        held: what was counted for its earlier bytes. peer: as in ``Bodies.grow``."""
        body = held or Body()
        try:
            self._bodies.grow(body, len(data) - body.size, peer)
        except Overloaded:
            return None
        return body

    def release(self, body: Body) -> None:
        """Release what ``hold`` has counted."""
        self._bodies.end(body)

    def take(self, send: PlainSend) -> asyncio.Future[None] | None:
        """Append a send at once, or together with others that arrive in this turn of the event
        loop.

        The connection gets the answer (``ApiHandler.finish``), or the send back
        (``ApiHandler.pass_on``) if aiohttp has to serve it. Returns a future of the end of the
        turn; None: the connection has got it.
        """
        now, size, turn = self._monotonic(), len(send.request), self._turn
        if turn is not None and turn.size + size > GATHERED_SIZE_MAX:
            self._end_turn(turn)
            turn = None
        last, self._last_connection = self._last_connection, send.connection
        since_last_s, self._last_at = now - self._last_at, now
        if turn is None:
            is_large = size > GATHERED_SIZE_MAX // 4
            if is_large or send.connection is last or since_last_s > GATHERED_WITHIN_S:
                self._append_alone(send, now)
                return None
            loop = asyncio.get_running_loop()
            self._turn = turn = Turn(loop.create_future(), self.repeats_so_far(), now)
            loop.call_soon(self._end_turn, turn)
        turn.sends.append(send)
        turn.size += size
        return turn.end

    def _append_alone(self, send: PlainSend, started: float) -> None:
        """Append a send, and give its connection the answer."""
        try:
            outcome: Outcome = self._call.append_now(send, started)
        except Exception as error:  # noqa: BLE001 - becomes an answer, as in ``http_api``
            outcome = error
        self._request_classes.note_sent()
        answer = self._begun(send, outcome, started, self._monotonic())
        if answer is None:
            send.connection.pass_on(send, self.repeats_so_far())
        else:
            send.connection.finish(answer)

    def _end_turn(self, turn: Turn) -> None:
        """Append the sends of a turn, and give each connection its answer."""
        if turn is not self._turn:
            return  # it was full
        self._turn, sends = None, turn.sends
        outcomes: Sequence[Outcome] = [None] * len(sends)
        if self.repeats_so_far() == turn.repeats:  # otherwise one may be the repeat of a send
            outcomes = self._outcomes(sends, turn.started)
        self._request_classes.note_sent()
        now = self._monotonic()
        for send, outcome in zip(sends, outcomes, strict=True):
            connection, answer = send.connection, self._begun(send, outcome, turn.started, now)
            if answer is None:
                # In a callback of its own: an error in aiohttp ends no other connection's send.
                turn.end.get_loop().call_soon(connection.pass_on, send, turn.repeats)
            else:
                connection.finish(answer)
        turn.end.set_result(None)

    def _outcomes(self, sends: Sequence[PlainSend], started: float) -> Sequence[Outcome]:
        try:
            return self._call.append_all(sends, started)
        except Exception as error:  # noqa: BLE001 - becomes an answer, as in ``http_api``
            return [error] * len(sends)

    def _begun(
        self, send: PlainSend, outcome: Outcome, started: float, now: float
    ) -> bytes | WaitingSend | None:
        """Return the answer of a send, or what waits for its level; None: the general path has to
        serve it. Never raises; the answer may be an error.

        started, now: begin and end of the append, on the monotonic clock [s]."""
        head, held = send.head, send.held
        try:
            if outcome is None:
                return None
            if isinstance(outcome, Exception):
                answer = self._refusal(head, outcome)
            elif (level := outcome.sender.wait(outcome)) is None:
                answer = self._settled(head, outcome, now)
            else:
                body, held = held or self._bodies.take(head.body_size), None
                return WaitingSend(head, outcome, level, body, self._puts.begin(started), started)
        except Exception as error:  # noqa: BLE001 - becomes an answer, as in ``http_api``
            answer = self._refusal(head, error)
        finally:
            if held is not None:
                self._bodies.end(held)
        self._note_duration(head, now - started)
        return answer

    def answer(self, send: WaitingSend) -> bytes | Awaitable[bytes]:
        """Return the answer of a send whose wait has ended.

        It is ready if the messages have their level. Never raises."""
        level = send.level
        if level.cancelled() or level.exception() is not None or not level.result():
            return self._answer_later(send)
        self._request_classes.note_sent()
        now = self._monotonic()
        answer = self._settled(send.head, send.appended, now)
        self._end(send, now)
        return answer

    async def _answer_later(self, send: WaitingSend) -> bytes:
        """Let the sender end the wait of a send whose level was not reached; return its error."""
        try:
            await send.appended.sender.reach(send.appended, send.level)
            return self._answer(send.head, send.appended)
        except Exception as error:  # noqa: BLE001 - becomes an answer, as in ``http_api``
            return self._refusal(send.head, error)
        finally:
            self._end(send, self._monotonic())

    def _settled(self, head: SendHead, appended: AppendedSend, now: float) -> bytes:
        """Return the answer of a send whose messages have their level, if it still holds."""
        try:
            appended.sender.settle(appended, now)
            return self._answer(head, appended)
        except Exception as error:  # noqa: BLE001 - becomes an answer, as in ``http_api``
            return self._refusal(head, error)

    def _end(self, send: WaitingSend, now: float) -> None:
        """Release what is counted for a send that waited."""
        self._bodies.end(send.body)
        self._puts.end(send.number)
        self._note_duration(send.head, now - send.started)

    def _note_duration(self, head: SendHead, took_s: float) -> None:
        duration = self._duration if head.batch is None else self._batch_duration
        duration.observe(took_s)

    def _answer(self, head: SendHead, appended: AppendedSend) -> bytes:
        body = packed(appended.result, head.accepted)
        return _head(_OK, head.accepted, len(body), int(time.time())) + body

    def _refusal(self, head: SendHead, error: Exception) -> bytes:
        if isinstance(error, TidemarkError):
            self._put_results.labels(result_of(error)).inc()
        call = "messages" if head.batch is None else "batches"
        refused = self._refusals.of(error, RequestClass.PUT, f"/v1/topics/{head.topic}/{call}")
        body = encodings.encode(error_fields(refused), head.accepted)
        status, more = HTTPStatus(refused.status), "Retry-After: 1\r\n"
        return (
            _head(
                status,
                head.accepted,
                len(body),
                int(time.time()),
                more if retry_after(refused) else "",
            )
            + body
        )


@functools.lru_cache(maxsize=64)
def _head(status: HTTPStatus, encoding: Encoding, size: int, now_s: int, more: str = "") -> bytes:
    """Return the head of an answer; cached, because answers of one second have few sizes.

    more: further headers."""
    date = formatdate(now_s, usegmt=True)
    return _HEAD.format(
        status.value, status.phrase, encoding.value, size, date, SERVER_SOFTWARE, more
    ).encode()
