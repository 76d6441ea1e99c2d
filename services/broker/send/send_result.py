"""The result of a send: the location of each message. It is built only on demand.

The common answer is packed in one pass over the request's own bytes, without an object per message.
Before this step ``sender`` has appended the messages and their level is reached. After it
``send`` writes the answer (write path, step 6).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple, cast

import msgpack
import msgspec

from services.broker.log.ack_levels import AckLevel
from services.broker.log.append import Appended
from services.broker.send.batches import batch_id
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
from tidemark.formats.hosts import Host
from tidemark.formats.runs import Run
from tidemark.offsets import PhysicalOffset

COPIES: Final = 1
"""Number of copies on a standalone node."""
_LEVEL_NAMES: Final = {level: level.value for level in AckLevel}
"""A look-up takes a tenth of the time of an enum's ``value``."""
_UNIQUE_ID: Final = properties.UNIQ_KEY.encode("ascii")


class SendResult(msgspec.Struct, eq=False):
    """Level, copies and message locations of a send that was stored completely or in part."""

    level: AckLevel
    _entries: bytes
    """All messages, in the request's order."""
    _runs: Sequence[Run]
    _appended: Appended | None
    """None: the messages lie in more than one place of the log."""
    _positions: Sequence[int] | None = None
    """Index of each message among those of the runs; None: the same order."""
    _waits: Sequence[Wait | None] | None = None
    """Delay of each message; None: no message is delayed."""
    _is_batch: bool = False
    """Whether it was a batch request; its result is that of the batch, not of each message."""
    copies: int = COPIES
    _results: list[dict[str, Any]] | None = None

    @classmethod
    def of_places(
        cls, level: AckLevel, results: list[dict[str, Any]], *, is_batch: bool = False
    ) -> SendResult:
        """The result of a repeated send, whose messages lie in more than one place of the log."""
        return cls(level, b"", (), None, _is_batch=is_batch, _results=results)

    def packed(self) -> bytes:
        """Return the body of the answer in msgpack."""
        appended = self._appended
        if appended is None or len(self._runs) > 1 or self._waits is not None or self._is_batch:
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
            batch_id=batch_id(run.batch_properties) if run.batch_properties else None,
        )

    def as_dict(self) -> dict[str, Any]:
        """Return the body of the answer as a map."""
        results = self.results()
        return {
            "status": "PUT_OK",
            "ack": {"level": self.level.value, "copies": self.copies},
            **({"batch": results[0]} if self._is_batch else {"results": results}),
        }

    def results(self) -> list[dict[str, Any]]:
        """Return the location of each message, in the request's order; of a batch request, that of
        the batch."""
        if self._results is None:
            assert self._appended is not None, "of_places sets the results"
            self._results = self._made(self._appended)
        return self._results

    def _made(self, appended: Appended) -> list[dict[str, Any]]:
        runs, time_ms = self._runs, appended.store_timestamp_ms
        host = runs[0].store_host
        if self._is_batch:
            (run,), (first,) = runs, appended.firsts
            of_batch = batch_id(run.batch_properties)
            place = _Place(run.queue_id, first, int(appended.start), of_batch)
            return [{**place.result(host, None, time_ms), "message_count": run.message_count}]
        places = _places(runs, appended)
        positions = range(len(places)) if self._positions is None else self._positions
        results: list[dict[str, Any]] = []
        for entry, position in zip(batch.iterate(self._entries), positions, strict=True):
            unique_id = _unique_id(entry.properties)
            results.append(places[position].result(host, unique_id, time_ms))
        for result, wait in zip(results, self._waits or (), strict=False):
            if wait is not None:
                result["topic"] = wait.topic
                result["deliver_at_ms"] = wait.due_ms(time_ms)
        return results


class _Place(NamedTuple):
    """Location of an appended message."""

    queue: int
    queue_offset: int
    physical_offset: int
    """That of its record, which may be a batch."""
    batch_id: str | None
    """Unique id of the batch; None: the message is a record."""

    def result(self, host: Host, unique_id: str | None, time_ms: int) -> dict[str, Any]:
        """Return the location as the answer has it.

        unique_id: that of the message; None: that of its batch, if any. time_ms: store time.
        """
        return {
            "message_id": ids.offset_id(host, PhysicalOffset(self.physical_offset)),
            "unique_id": self.batch_id if unique_id is None else unique_id,
            "queue": self.queue,
            "queue_offset": self.queue_offset,
            "physical_offset": self.physical_offset,
            "store_timestamp_ms": time_ms,
        }


def _places(runs: Sequence[Run], appended: Appended) -> list[_Place]:
    """Return the locations of the messages of all runs."""
    places: list[_Place] = []
    at = int(appended.start)
    sizes = iter(memoryview(appended.sizes).cast("I"))
    for run, first in zip(runs, appended.firsts, strict=True):
        numbers = range(first, first + run.message_count)
        if run.batch_properties:
            of_batch = batch_id(run.batch_properties)
            places += [_Place(run.queue_id, number, at, of_batch) for number in numbers]
            at += next(sizes)
            continue
        for number in numbers:
            places.append(_Place(run.queue_id, number, at, None))
            at += next(sizes)
    return places


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
