"""The result of a send: the location of each message. It is built only on demand.

The common answer is packed in one pass over the request's own bytes, without an object per message.
Before this step ``sender`` has appended the messages and their level is reached. After it
``send`` writes the answer (write path, step 6).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, Final, cast

import msgpack

from services.broker.log.ack_levels import AckLevel
from services.broker.log.append import Appended
from services.broker.send.placing import Wait
from tidemark.errors import (
    AckTimeout,
    NotEnoughReplicas,
    NotServing,
    RequestError,
    StoreError,
    TidemarkError,
)
from tidemark.formats import batch, hosts, ids, native, properties
from tidemark.formats.runs import Run

COPIES: Final = 1
"""Number of copies on a standalone node."""
_LEVEL_NAMES: Final = {level: level.value for level in AckLevel}
"""A look-up takes a tenth of the time of an enum's ``value``."""
_UNIQUE_ID: Final = properties.UNIQ_KEY.encode("ascii")


class SendResult:
    """Level, copies and message locations of a send that was stored completely or in part."""

    __slots__ = (
        "_appended",
        "_entries",
        "_positions",
        "_results",
        "_runs",
        "_waits",
        "copies",
        "level",
    )

    def __init__(
        self,
        level: AckLevel,
        entries: bytes,
        runs: Sequence[Run],
        appended: Appended,
        positions: Sequence[int] | None = None,
        waits: Sequence[Wait | None] | None = None,
    ) -> None:
        """entries: all messages, in the request's order. positions: index of each of them among
        the messages of the runs; None: the same order. waits: delay of each message; None: no
        message is delayed.
        """
        self.level = level
        self.copies = COPIES
        self._entries = entries
        self._runs = runs
        self._appended: Appended | None = appended
        self._positions = positions
        self._waits = waits
        self._results: list[dict[str, Any]] | None = None

    @classmethod
    def of_places(cls, level: AckLevel, results: list[dict[str, Any]]) -> SendResult:
        """The result of a repeated send, whose messages lie in more than one place of the log."""
        made = cls.__new__(cls)
        made.level, made.copies, made._results = level, COPIES, results
        made._appended = None
        return made

    def packed(self) -> bytes:
        """Return the body of the answer in msgpack."""
        appended = self._appended
        if appended is None or len(self._runs) > 1 or self._waits is not None:
            return cast(bytes, msgpack.packb(self.as_dict()))
        run = self._runs[0]
        return native.pack_answer(
            run.entries,
            appended.sizes,
            level=_LEVEL_NAMES[self.level],
            copies=self.copies,
            host=hosts.encode(run.store_host),
            queue=run.queue_id,
            first_queue_offset=appended.firsts[0],
            first_physical_offset=appended.start,
            store_timestamp_ms=appended.store_timestamp_ms,
        )

    def as_dict(self) -> dict[str, Any]:
        """Return the body of the answer as a map."""
        return {
            "status": "PUT_OK",
            "ack": {"level": self.level.value, "copies": self.copies},
            "results": self.results(),
        }

    def results(self) -> list[dict[str, Any]]:
        """Return the location of each message, in the request's order."""
        if self._results is None:
            assert self._appended is not None, "of_places sets the results"
            self._results = self._made(self._appended)
        return self._results

    def _made(self, appended: Appended) -> list[dict[str, Any]]:
        runs, (firsts, start, sizes, time_ms, _) = self._runs, appended
        numbers = [
            (run.queue_id, number)
            for run, first in zip(runs, firsts, strict=True)
            for number in range(first, first + run.message_count)
        ]
        offsets = list(itertools.accumulate(memoryview(sizes).cast("I"), initial=int(start)))
        positions = range(len(numbers)) if self._positions is None else self._positions
        host = runs[0].store_host
        results: list[dict[str, Any]] = [
            {
                "message_id": ids.offset_id(host, offsets[position]),
                "unique_id": _unique_id(entry.properties),
                "queue": numbers[position][0],
                "queue_offset": numbers[position][1],
                "physical_offset": offsets[position],
                "store_timestamp_ms": time_ms,
            }
            for entry, position in zip(batch.iterate(self._entries), positions, strict=True)
        ]
        for result, wait in zip(results, self._waits or (), strict=False):
            if wait is not None:
                result["topic"] = wait.topic
                result["deliver_at_ms"] = wait.due_ms(time_ms)
        return results


def _unique_id(raw: bytes | memoryview) -> str | None:
    found = properties.find(bytes(raw), _UNIQUE_ID)
    return None if found is None else properties.text(found)


def result_of(error: TidemarkError) -> str:
    """Return the label value under which a refused put is counted."""
    match error:
        case AckTimeout():
            return "flush_timeout"
        case NotEnoughReplicas():
            return "replica_unavailable"
        case StoreError() if error.status == 507:
            return "disk_full"
        case RequestError():
            return "invalid"
        case NotServing():
            return "busy"
        case _:
            return "failed"
