"""Sends: which queue, which ack level, and the answer if it is not reached in time."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import cast

import msgpack
import pytest
from msgspec.structs import replace

from services.broker.log.ack_levels import AckLevel
from services.broker.log.append import Append, Appended
from services.broker.log.log_context import LogContext
from services.broker.log.queue_offsets import QueueOffsets
from services.broker.log.term import EndlessTerm
from services.broker.metrics import BrokerMetrics
from services.broker.send.deduplicator import Deduplicator
from services.broker.send.request import Pick, ProduceRequest
from services.broker.send.send_result import SendResult, result_of
from services.broker.send.sender import AppendedSend, Outcome, PendingSend, Sender
from services.broker.send.wanted_delay import Delay
from services.broker.state.topics import Topics
from shared.metrics.registry import Registry
from shared.runtime.clock import SystemClock
from shared.state.records import TopicConfig
from tests.support.metrics import sample, samples
from tidemark.errors import (
    AckTimeout,
    BadRequest,
    DiskFull,
    FileNotReady,
    FlushFailed,
    LogFileReplaced,
    MessageTooLarge,
    NodeAlone,
    NotEnoughReplicas,
    NotServing,
    Overloaded,
    StoreError,
    TidemarkError,
    UnknownQueue,
    WriteFailed,
)
from tidemark.formats import batch, hashing, properties, runs
from tidemark.formats.batch import WireMessage
from tidemark.formats.hosts import Host
from tidemark.formats.runs import Run
from tidemark.offsets import PhysicalOffset

HOST = Host(b"\x7f\x00\x00\x01", 10911)
BORN = Host(b"\x0a\x00\x00\x07", 4711)
QUEUES = 4


class Log:
    """Accepts everything, at real sizes; a test decides when it is durable, or in its file."""

    def __init__(self) -> None:
        self.requests: list[Sequence[Run]] = []
        self.end = PhysicalOffset(0)
        self.is_durable = True
        self.lacks_file = self.is_stopping = False
        self.write_fault: WriteFailed | None = None
        self.refusal: TidemarkError | None = None
        """Error of an append of more than ``room`` bytes."""
        self.room = 0
        self.sync_fault: StoreError | None = None
        self.committed_to = 0
        self._offsets = QueueOffsets({})

    def append_now(self, made: Sequence[Run], *, own: bool = False, room: int = 0) -> Appended:
        if self.lacks_file:
            raise FileNotReady("planted")
        start, size = self.end, runs.runs_size(made, record_crc=True)
        if self.refusal is not None and size > self.room:
            raise self.refusal
        self.requests.append(made)
        numbered = self._offsets.number(made)
        sizes = runs.encode_runs(
            bytearray(size),
            made,
            firsts=numbered.firsts,
            physical_offset=start,
            store_timestamp_ms=5,
            record_crc=True,
        )
        self.end = PhysicalOffset(start + size)
        self._offsets.commit(numbered, self.end)
        appended = Appended(numbered.firsts, start, sizes, 5, self.end)
        if self.write_fault is not None:
            self.write_fault.appended = appended
            raise self.write_fault
        return appended

    async def file_made(self) -> None:
        self.lacks_file = False

    async def durable(self, end: PhysicalOffset, deadline: float) -> bool:
        if self.is_stopping:
            raise NotServing("the node is stopping")
        if self.sync_fault is not None:
            raise self.sync_fault
        return self.is_durable

    async def committed(self, end: PhysicalOffset) -> bool:
        await asyncio.sleep(0)
        if self.is_stopping:
            raise NotServing("the node is stopping")
        self.committed_to = end
        return True


class OneTopic:
    """Every name is a topic of four queues."""

    def is_batch(self, name: str) -> bool:
        return False

    def ready_for_sending(self, name: str) -> TopicConfig | None:
        return TopicConfig(name, QUEUES, QUEUES)

    async def for_sending(self, name: str) -> TopicConfig:
        return TopicConfig(name, QUEUES, QUEUES)


def ground_of(
    log: object,
    metrics: BrokerMetrics | None = None,
    *,
    pooled: bool = False,
    delay_levels_ms: tuple[int, ...] = (),
) -> LogContext:
    """What a sender needs of a log, which is its own flusher and, if it is pooled, committer."""
    return cast(
        LogContext,
        SimpleNamespace(
            term=EndlessTerm(),
            durability=log,
            flushed=lambda: PhysicalOffset(0),
            flusher=log,
            committer=log if pooled else None,
            clock=SystemClock(),
            host=HOST,
            config=SimpleNamespace(
                store=SimpleNamespace(delay_levels_ms=delay_levels_ms, record_crc=True)
            ),
            metrics=metrics or BrokerMetrics(Registry("broker")),
        ),
    )


def sends_to(
    log: Log,
    metrics: BrokerMetrics | None = None,
    *,
    pooled: bool = False,
    delay_levels_ms: tuple[int, ...] = (),
) -> Deduplicator:
    log_context = ground_of(log, metrics, pooled=pooled, delay_levels_ms=delay_levels_ms)
    return Deduplicator(Sender(log_context, cast(Append, log), cast(Topics, OneTopic())))


def request(
    *bodies: bytes,
    picks: int | list[Pick] | None = None,
    ack: AckLevel = AckLevel.DISK,
    timeout_ms: int = 3000,
) -> ProduceRequest:
    """One message per body; every other one with a unique id made of its body."""
    entries = [
        WireMessage(body, properties.encode({"UNIQ_KEY": body.hex()} if body and n % 2 else {}))
        for n, body in enumerate(bodies)
    ]
    return ProduceRequest(batch.encode(entries), len(bodies), picks, ack, timeout_ms)


def stored(log: Log) -> list[tuple[int, list[bytes]]]:
    """The last request as it was appended: queue and bodies of each run."""
    return [
        (run.queue_id, [bytes(entry.body) for entry in batch.iterate(run.entries)])
        for run in log.requests[-1]
    ]


async def queues_of(sends: Deduplicator, log: Log, *picks: Pick, topic: str = "t") -> list[int]:
    """Where the messages of a request with these picks go, as the answer says and the log has."""
    bodies = [b"%d" % number for number in range(len(picks))]
    sent = await sends.send(topic, request(*bodies, picks=list(picks)), BORN)
    queues = [result["queue"] for result in sent.as_dict()["results"]]
    kept = {body: queue for queue, bodies in stored(log) for body in bodies}
    assert [kept[body] for body in bodies] == queues
    return queues


async def test_a_request_without_queues_goes_to_one_queue_and_the_next_to_the_next() -> None:
    log = Log()
    sends = sends_to(log)
    for turn in range(2 * QUEUES):
        await sends.send("t", request(b"a", b"b", b"c"), BORN)
        assert stored(log) == [(turn % QUEUES, [b"a", b"b", b"c"])]
    await sends.send("other", request(b"a"), BORN)
    assert stored(log) == [(0, [b"a"])], "turns are per topic"


async def test_a_request_for_one_queue_is_one_run_as_it_stands() -> None:
    log = Log()
    sent = request(b"a", b"b", picks=3)
    await sends_to(log).send("t", sent, BORN)
    (run,) = log.requests[-1]
    assert run.entries is sent.entries
    assert (run.topic, run.queue_id, run.message_count) == ("t", 3, 2)
    assert (run.born_host, run.store_host) == (BORN, HOST)


async def test_equal_sharding_keys_share_a_queue_and_it_is_the_javas_choice() -> None:
    log = Log()
    keys = ["a", "user-7", "polygenelubricants", "größe", ""]
    found = await queues_of(sends_to(log), log, *keys)
    assert found == [abs(hashing.string_hash(key)) % QUEUES for key in keys]


async def test_named_queues_are_kept_and_do_not_take_a_turn() -> None:
    log = Log()
    sends = sends_to(log)
    assert await queues_of(sends, log, 3, None, 1, None) == [3, 0, 1, 0]
    await queues_of(sends, log, 2, "key")
    assert await queues_of(sends, log, None) == [1]


@pytest.mark.parametrize("picks", [[0, QUEUES], QUEUES])
async def test_a_queue_out_of_range_stores_nothing(picks: int | list[Pick]) -> None:
    log = Log()
    with pytest.raises(UnknownQueue, match=r"messages\[.\].queue is 4"):
        await sends_to(log).send("t", request(b"a", b"b", picks=picks), BORN)
    assert log.requests == []


async def test_replicated_is_refused_before_anything_is_stored() -> None:
    log = Log()
    with pytest.raises(NotEnoughReplicas, match="Nothing was stored"):
        await sends_to(log).send("t", request(b"a", ack=AckLevel.REPLICATED), BORN)
    assert log.requests == []


async def test_memory_does_not_wait_for_the_disk_and_says_so() -> None:
    log = Log()
    log.is_durable = False
    sent = await sends_to(log).send("t", request(b"a", ack=AckLevel.MEMORY), BORN)
    assert sent.as_dict()["ack"] == {"level": "memory", "copies": 1}


async def test_memory_of_a_pooled_log_is_answered_after_the_commit() -> None:
    log = Log()
    sent = await sends_to(log, pooled=True).send("t", request(b"a", ack=AckLevel.MEMORY), BORN)
    assert log.committed_to == log.end
    assert sent.level is AckLevel.MEMORY


async def test_disk_is_answered_once_the_bytes_are_there() -> None:
    log = Log()
    sends = sends_to(log)
    await sends.send("t", request(b"before", picks=2), BORN)
    before = log.end
    answer = (await sends.send("t", request(b"a", b"bc", picks=2), BORN)).as_dict()
    assert answer["status"] == "PUT_OK"
    assert answer["ack"] == {"level": "disk", "copies": 1}
    first, second = answer["results"]
    assert first == {
        "message_id": "7F00000100002A9F" + f"{before:016X}",
        "unique_id": None,
        "queue": 2,
        "queue_offset": 1,
        "physical_offset": before,
        "store_timestamp_ms": 5,
    }
    assert (second["unique_id"], second["queue_offset"]) == (b"bc".hex(), 2)
    assert before < second["physical_offset"] < log.end


@pytest.mark.parametrize("picks", [None, 1, [1, 0, 1, None, "key", 0]])
async def test_the_packed_answer_is_the_answer(picks: int | list[Pick] | None) -> None:
    log = Log()
    sends = sends_to(log)
    await sends.send("t", request(b"before"), BORN)
    bodies = [b"", b"a", b"\xff" * 300, b"c", b"d" * 70_000, b"e"]
    sent = await sends.send("t", request(*bodies, picks=picks), BORN)
    assert sent.packed() == msgpack.packb(sent.as_dict())
    assert msgpack.unpackb(sent.packed()) == sent.as_dict()


async def test_a_send_that_meets_no_file_waits_for_it() -> None:
    log = Log()
    log.lacks_file = True
    sent = await sends_to(log).send("t", request(b"a"), BORN)
    assert isinstance(sent, SendResult)
    assert len(log.requests) == 1


@pytest.mark.parametrize("pooled", [False, True])
async def test_a_timeout_error_has_the_places_of_the_messages(pooled: bool) -> None:
    log = Log()
    log.is_durable = False
    with pytest.raises(
        AckTimeout, match=r"2 messages are stored.*1 ms. The outcome is unk"
    ) as caught:
        await sends_to(log, pooled=pooled).send("t", request(b"a", b"b", timeout_ms=1), BORN)
    facts = caught.value.facts
    assert facts["ack"] == {"level": "memory", "copies": 1}
    assert facts["results"][0]["physical_offset"] == 0
    assert len(facts["results"]) == 2
    assert log.committed_to == (log.end if pooled else 0), "memory is not claimed before it is true"


@pytest.mark.parametrize(("pooled", "ack"), [(False, "disk"), (True, "disk"), (True, "memory")])
async def test_a_send_on_a_stopping_node_learns_what_may_be_stored(pooled: bool, ack: str) -> None:
    log = Log()
    log.is_stopping = True
    sends = sends_to(log, pooled=pooled)
    with pytest.raises(AckTimeout, match=r"2 messages are appended.*unknown") as caught:
        await sends.send("t", request(b"a", b"b", ack=AckLevel(ack)), BORN)
    assert len(caught.value.facts["results"]) == 2
    assert "ack" not in caught.value.facts, "no level is claimed"


async def test_messages_bytes_and_sizes_are_counted() -> None:
    log, registry = Log(), Registry("broker")
    sends = sends_to(log, BrokerMetrics(registry))
    await sends.send("t", request(b"a" * 100, b"b", picks=[0, 1]), BORN)
    await sends.send("t", request(b"c" * 300, ack=AckLevel.MEMORY), BORN)

    def value(name: str, **labels: str) -> float | None:
        return sample(registry, f"tidemark_broker_{name}", labels)

    assert value("messages_in_total", topic="t", kind="normal") == 3
    assert value("received_bytes_total", topic="t") == log.end
    assert value("message_size_bytes_sum") == 401
    assert value("message_size_bytes_bucket", le="64.0") == 1
    assert value("message_size_bytes_bucket", le="256.0") == 2
    assert value("message_size_bytes_count") == 3
    assert value("put_results_total", result="ok") == 2
    assert value("put_duration_seconds_count", ack="disk") == 1
    assert value("put_duration_seconds_count", ack="memory") == 1


async def test_each_message_is_counted_once_by_its_kind() -> None:
    log, registry = Log(), Registry("broker")
    sends = sends_to(log, BrokerMetrics(registry), delay_levels_ms=(1000,))
    bodies = (b"a", b"b", b"c", b"d")
    await sends.send("t", request(*bodies, picks=[0, "key", None, "key"]), BORN)
    await sends.send("t", request(b"e", picks=["key"]), BORN)
    await sends.send("t", request(b"f"), BORN)
    soon = Delay(level=1)
    waiting = replace(
        request(*bodies, picks=["key", "key", 1, None]), delays=[soon, None, soon, None]
    )
    await sends.send("t", waiting, BORN)
    found = {
        kind: sample(registry, "tidemark_broker_messages_in_total", {"topic": "t", "kind": kind})
        for kind in ("normal", "fifo", "delay", "retry")
    }
    assert found == {"normal": 4, "fifo": 4, "delay": 2, "retry": None}


@pytest.mark.parametrize(
    ("error", "label"),
    [
        (AckTimeout(""), "flush_timeout"),
        (NotEnoughReplicas(""), "replica_unavailable"),
        (DiskFull(""), "disk_full"),
        (BadRequest(""), "invalid"),
        (Overloaded(""), "busy"),
        (NotServing(""), "busy"),
        (TidemarkError(""), "failed"),
    ],
)
def test_every_refusal_is_counted_under_one_of_few_labels(error: TidemarkError, label: str) -> None:
    assert result_of(error) == label


async def test_the_result_of_a_delayed_message_has_its_place_and_due_time() -> None:
    log = Log()
    sends = sends_to(log, delay_levels_ms=(1000, 5000))
    asked = replace(
        request(b"now", b"level", b"time", b"past", picks=2),
        delays=[None, Delay(level=2), Delay(after_ms=90_000), Delay(at_ms=1)],
    )
    before_ms = SystemClock().wall_ms()
    sent = await sends.send("orders", asked, BORN)
    now, level, time, past = sent.results()
    assert "deliver_at_ms" not in now
    assert "deliver_at_ms" not in past
    assert [each["queue"] for each in (now, level, time, past)] == [2, 1, 0, 2]
    assert level["topic"] == "SCHEDULE_TOPIC_XXXX"
    assert level["deliver_at_ms"] == level["store_timestamp_ms"] + 5000
    assert time["topic"] == "rmq_sys_wheel_timer"
    assert 0 <= time["deliver_at_ms"] - before_ms - 90_000 < 60_000
    assert (now["queue_offset"], past["queue_offset"]) == (0, 1)
    assert msgpack.unpackb(sent.packed()) == sent.as_dict()


# A write that failed part-way left the outcome unknown for the whole request: a sender of thirty
# messages could not look for the ten that existed after the restart.
@pytest.mark.parametrize("kind", [WriteFailed, FlushFailed, LogFileReplaced])
async def test_a_disk_failure_reports_the_place_of_each_message_that_may_be_stored(
    kind: type[StoreError],
) -> None:
    log = Log()
    fault = kind("the disk failed.", "Look at it.", path="p")
    if isinstance(fault, WriteFailed):
        log.write_fault = fault
    else:
        log.sync_fault = fault
    with pytest.raises(kind, match="the disk failed") as failed:
        await sends_to(log).send("t", request(b"a", b"b", b"c", picks=[2, 0, 2]), BORN)
    results = failed.value.facts["results"]
    assert [(each["queue"], each["queue_offset"]) for each in results] == [(2, 0), (0, 0), (2, 1)]
    assert {each["outcome"] for each in results} == {"unknown"}
    assert [each["unique_id"] for each in results] == [None, b"b".hex(), None]
    assert sorted(each["physical_offset"] for each in results)[0] == 0
    assert failed.value.facts["path"] == "p"
    assert "results" not in fault.facts, "the same failure is said to other senders"


async def test_a_write_that_failed_before_any_record_of_the_request_has_no_results() -> None:
    log = Log()

    def fails(made: Sequence[Run], *, own: bool = False, room: int = 0) -> Appended:
        raise WriteFailed("filling up the file failed.")

    log.append_now = fails  # type: ignore[method-assign]
    with pytest.raises(WriteFailed) as failed:
        await sends_to(log).send("t", request(b"a"), BORN)
    assert "results" not in failed.value.facts


def several() -> list[ProduceRequest]:
    """Requests for one queue, for several, without a queue, and with delayed messages."""
    delayed = replace(request(b"g", b"h"), delays=[Delay(level=1), None])
    return [
        request(b"a", b"b", picks=3),
        request(b"c", b"d", b"e", picks=[1, 3, 1]),
        request(b"f"),
        delayed,
        request(b"i", picks=3),
    ]


def pending(*requests: ProduceRequest, topic: str = "t") -> list[PendingSend]:
    return [PendingSend(topic, each, BORN, None, 0.0) for each in requests]


def results_of(outcome: Outcome) -> list[dict[str, object]]:
    assert isinstance(outcome, AppendedSend)
    return outcome.result.results()


def test_sends_that_are_appended_together_have_the_results_of_sends_one_after_another() -> None:
    log, single = Log(), Log()
    outcomes = sends_to(log, delay_levels_ms=(1000,)).append_all(pending(*several()))
    alone = sends_to(single, delay_levels_ms=(1000,))
    expected = [alone.append_all(pending(each))[0] for each in several()]
    assert (len(log.requests), len(single.requests)) == (1, 5)
    for found, wanted in zip(outcomes, expected, strict=True):
        assert results_of(found) == results_of(wanted)
        assert isinstance(found, AppendedSend)
        assert isinstance(wanted, AppendedSend)
        assert found.end == wanted.end
        assert msgpack.unpackb(found.result.packed()) == wanted.result.as_dict()


def test_sends_are_counted_alike_together_and_one_after_another() -> None:
    counted = []
    for together in (True, False):
        metrics = BrokerMetrics(registry := Registry("broker"))
        sends = sends_to(Log(), metrics, delay_levels_ms=(1000,))
        for each in [pending(*several())] if together else map(pending, several()):
            sends.append_all(each)
        counted.append(samples(registry))
    assert counted[0] == counted[1]
    assert sum(value for name, value in counted[0].items() if "messages_in_total" in name) == 9


def test_a_send_that_is_refused_takes_no_other_with_it() -> None:
    log = Log()
    outcomes = sends_to(log).append_all(
        pending(
            request(b"a", picks=0),
            request(b"b", picks=QUEUES),
            request(b"c", picks=0, ack=AckLevel.REPLICATED),
            request(b"d", picks=0),
        )
    )
    assert [type(each) for each in outcomes] == [
        AppendedSend, UnknownQueue, NodeAlone, AppendedSend,
    ]  # fmt: skip
    assert stored(log) == [(0, [b"a"]), (0, [b"d"])]


@pytest.mark.parametrize("refusal", [DiskFull, MessageTooLarge, FileNotReady])
def test_sends_that_the_log_refuses_together_are_appended_one_by_one(
    refusal: type[TidemarkError],
) -> None:
    log = Log()
    log.refusal, log.room = refusal("planted"), 800
    outcomes = sends_to(log).append_all(
        pending(*(request(bytes(100), picks=0) for _ in range(3)), request(bytes(900), picks=1))
    )
    kept = [len(made) for made in log.requests]
    assert kept == [1, 1, 1]
    assert [results_of(each)[0]["queue_offset"] for each in outcomes[:3]] == [0, 1, 2]
    if refusal is FileNotReady:
        assert outcomes[3] is None, "it waits for the file"
    else:
        assert outcomes[3] is log.refusal


def test_after_a_failed_write_each_send_gets_the_places_of_its_own_messages() -> None:
    log = Log()
    log.write_fault = WriteFailed("the disk failed.")
    requests = [request(b"a", picks=2), request(b"b", b"c", picks=[0, 2])]
    outcomes = sends_to(log).append_all(pending(*requests))
    found = []
    for each in outcomes:
        assert isinstance(each, WriteFailed)
        results = each.facts["results"]
        assert {result["outcome"] for result in results} == {"unknown"}
        found.append([(result["queue"], result["queue_offset"]) for result in results])
    assert found == [[(2, 0)], [(0, 0), (2, 1)]]
    assert len(log.requests) == 1, "nothing is appended again"
