"""The sample that scrapes share, over a store of real files: numbers, times, order, pace."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from services.broker.groups import lag_sampler as look_module
from services.broker.groups.lag_inputs import LagInputs
from services.broker.groups.lag_sampler import AGAIN_S, REST, LagSampler
from services.broker.groups.lag_series import Columns, LagSeries, SampleTables
from services.broker.groups.metrics import OF_PAIRS, LagGauges
from services.broker.groups.queue_stats import QueueStats
from services.broker.groups.topic_stats import TopicStats
from services.broker.log.log_sampler import LogSampler
from services.broker.log.log_times import LogTimes
from shared.metrics.registry import Registry
from shared.state.records import TopicRecord
from shared.state.values import GroupConfig, TopicConfig
from tests.support.metrics import samples
from tests.support.small_broker import FIRST_MS, HOST, SmallBroker
from tidemark.formats import batch
from tidemark.formats.batch import WireMessage
from tidemark.formats.runs import Run

NOW_MS = FIRST_MS + 10_000


class Clock:
    """The test moves it; each reading of it may take a while."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.look_takes_s = 0.0

    def wall_ms(self) -> int:
        return NOW_MS

    def monotonic(self) -> float:
        self.now_s += self.look_takes_s
        return self.now_s

    def boot_ms(self) -> int:
        return 0


class Members:
    """The members of a group, set by the test."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self.topics: dict[str, list[str]] = {}
        self.places: dict[tuple[str, str, int], tuple[int, int]] = {}
        self.numbers: dict[str, dict[tuple[str, int], int | None]] = {}
        """Number of the holder of each queue; 1 for a queue that is not listed."""
        self.busy: set[tuple[str, str, int]] = set()
        """Queues whose members have messages in hand and do not fetch."""

    def member_count(self, group: str) -> int:
        return self.counts.get(group, 0)

    def topics_read(self, group: str) -> Collection[str]:
        return self.topics.get(group, [])

    def holder_numbers(self, group: str) -> Callable[[tuple[str, int]], int | None] | None:
        if not self.counts.get(group):
            return None
        numbers = self.numbers.get(group, {})
        return lambda queue: numbers.get(queue, 1)

    def place_of(self, group: str, queue: tuple[str, int]) -> tuple[int, int] | None:
        return self.places.get((group, *queue))

    def busy_holders(self, group: str, now_s: float) -> Callable[[tuple[str, int]], bool]:
        return lambda queue: (group, *queue) in self.busy


class Made:
    """A broker with topic ``orders`` of three queues: 4 messages, 1 and none."""

    def __init__(self, root: Path, *, queue_series_max: int = 1000) -> None:
        self.broker = broker = SmallBroker(root)
        self.add_topic("orders", 3)
        for queue in (0, 0, 1, 0, 0):
            broker.now_ms += 1
            broker.send("orders", queue=queue)
        self.members, self.clock = Members(), Clock()
        self.confirmed: int | None = None
        queue_stats = QueueStats(
            broker.topics,
            broker.queues,
            broker.reader,
            next_of=broker.queue_offsets.next_of,
            floor=broker.topics.min_offset,
            dispatched=broker.dispatched,
        )
        self.watched = LagInputs(
            broker.configs,
            broker.offsets,
            self.members,
            queue_stats,
            TopicStats(
                broker.topics,
                broker.queue_offsets,
                queue_stats,
                log_start=lambda: broker.reader.min_offset,
                dispatched=broker.dispatched,
            ),
            self.clock,
        )
        self.log = LogSampler(
            broker.reader,
            newest=lambda: broker.appender.newest,
            confirmed=lambda: broker.appender.written,
            dispatched=broker.dispatched,
        )
        self.sampler = LagSampler(self.clock, queue_series_max)
        self.sampler.connect(self.log.times, self.watched)

    def add_topic(self, name: str, queues: int) -> None:
        self.broker.state.apply(TopicRecord(0, TopicConfig(name, queues, queues)))

    def add_group(self, name: str, offsets: Mapping[int, int], topic: str = "orders") -> None:
        self.broker.state.groups.setdefault(name, GroupConfig(name, lag_objective_ms=5000))
        moves = {(topic, queue): offset for queue, offset in offsets.items()}
        self.broker.offsets.accept(name, moves)

    def join(self, group: str, *topics: str) -> None:
        self.members.counts[group] = 1
        self.members.topics[group] = [*topics]

    async def look(self) -> SampleTables:
        self.clock.now_s += 1000.0
        await self.sampler.refresh()
        assert self.sampler.found is not None
        return self.sampler.found


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Made]:
    made = Made(tmp_path / "store")
    yield made
    made.broker.close()


def rows(table: Columns) -> dict[str, tuple[float | None, ...]]:
    """Values of each row by its labels, joined by blanks."""
    return {
        " ".join(labels): tuple(column[row] for column in table.columns)
        for row, labels in enumerate(table.labels)
    }


async def test_a_group_with_members_is_shown_queue_by_queue(made: Made) -> None:
    made.add_group("billing", {0: 1, 1: 1})
    made.join("billing", "orders")
    made.members.places["billing", "orders", 0] = (3, 3)
    found = await made.look()
    times = LogTimes(FIRST_MS + 5, FIRST_MS + 5, FIRST_MS + 5)
    assert found.times == times
    assert rows(found.lag) == {"billing orders main": (3, (10_000 - 2) / 1000)}
    # Queue 0 holds the records stored 1, 2, 4 and 5 ms after the first time: at 1 is the oldest
    # uncommitted, at 3 the oldest that was not handed out. Queue 2 was never committed.
    undelivered_s, uncommitted_s = (FIRST_MS + 5) / 1000, (FIRST_MS + 2) / 1000
    assert rows(found.pairs) == {
        "billing orders": (3, 2, 0, 1, 0, 0, 1, 1, undelivered_s, uncommitted_s, undelivered_s)
    }
    assert rows(found.groups) == {"billing": (1, 5.0, 1, 0)}
    assert rows(found.topics) == {"orders": (5, 0)}
    assert rows(found.queues) == {"orders 0": (4, 0), "orders 1": (1, 0), "orders 2": (0, 0)}
    assert rows(found.group_queues) == {
        "billing orders 0": (1, uncommitted_s, 1),
        "billing orders 1": (1, None, 1),
        "billing orders 2": (None, None, 1),
    }
    assert (found.queues_left_out, found.group_queues_left_out) == (0, 0)


async def test_messages_behind_a_busy_member_do_not_await_delivery(made: Made) -> None:
    # A hung handler: its member's prefetch is full, so the queue's next message stays in the
    # broker. It waits for the handler, and was once shown as waiting for delivery.
    made.add_group("billing", {0: 1, 1: 0})
    made.join("billing", "orders")
    made.members.places["billing", "orders", 0] = (3, 3)
    made.members.busy.add(("billing", "orders", 0))
    found = await made.look()
    undelivered_s, uncommitted_s, awaiting_s = rows(found.pairs)["billing orders"][8:]
    assert uncommitted_s == (FIRST_MS + 2) / 1000
    # Queue 1, whose message was stored 3 ms after the first time, is not the oldest queue: its
    # undelivered message does not affect the time that queue 0 takes.
    assert undelivered_s == (FIRST_MS + 3) / 1000
    assert awaiting_s == (FIRST_MS + 5) / 1000, "as of the dispatched end of the log"


@pytest.mark.parametrize("died_of_it", [True, False])
async def test_a_group_without_members_awaits_delivery_unless_its_members_died_of_a_message(
    made: Made, died_of_it: bool
) -> None:
    made.add_group("billing", {0: 1, 1: 0})
    if died_of_it:
        made.members.busy.add(("billing", "orders", 0))
    awaiting = (FIRST_MS + (5 if died_of_it else 2)) / 1000
    for _ in range(2):  # the second time the group stands still and is not looked at anew
        found = await made.look()
        assert rows(found.pairs)["billing orders"][10] == awaiting


async def test_young_garbage_of_a_long_sample_is_collected_between_its_slices(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    collected: list[int] = []
    monkeypatch.setattr(gc, "collect", collected.append)
    made.add_group("billing", {0: 1})
    await made.look()
    assert collected == [], "a short one has few slices"
    made.clock.look_takes_s = 1.0  # each check of the clock ends a slice
    await made.look()
    assert set(collected) == {0}


async def test_a_group_that_has_read_everything_stands_where_the_log_does(made: Made) -> None:
    made.add_group("billing", {0: 4, 1: 1, 2: 0})
    found = await made.look()
    now_s = (FIRST_MS + 5) / 1000
    assert rows(found.lag) == {"billing orders main": (0, 0)}
    assert rows(found.pairs)["billing orders"][-2:] == (now_s, now_s)


async def test_a_group_without_members_is_not_looked_at_again_until_something_moves(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    made.add_group("billing", {0: 4, 1: 1, 2: 0})
    await made.look()
    asked: list[str] = []
    of_group = made.broker.offsets.of_group

    def noted(group: str) -> Mapping[tuple[str, int], int]:
        asked.append(group)
        return of_group(group)

    monkeypatch.setattr(made.broker.offsets, "of_group", noted)
    assert rows((await made.look()).lag) == {"billing orders main": (0, 0)}
    assert asked == []
    made.broker.now_ms += 95
    made.broker.send("orders", queue=2)
    assert rows((await made.look()).lag) == {"billing orders main": (1, 9.9)}
    made.broker.offsets.accept("billing", {("orders", 2): 1})
    assert rows((await made.look()).lag) == {"billing orders main": (0, 0)}
    asked.clear()
    made.join("billing", "orders")
    assert rows((await made.look()).pairs)["billing orders"][7] == 1
    assert asked == ["billing"]
    made.members.counts.clear()
    await made.look()
    asked.clear()
    made.broker.state.groups["billing"] = GroupConfig("billing", lag_objective_ms=7000)
    assert rows((await made.look()).groups) == {"billing": (0, 7.0, 1, 0)}
    assert asked == ["billing"]


async def test_a_group_that_stands_still_is_found_again_when_its_retry_topic_is_made(
    made: Made,
) -> None:
    made.add_group("billing", {0: 4, 1: 1, 2: 0})
    await made.look()
    made.add_topic("%RETRY%billing", 1)
    made.broker.send("%RETRY%billing")
    assert rows((await made.look()).pairs)["billing %RETRY%billing"][6] == 1, "never committed"


async def test_the_lag_of_a_group_that_stands_still_grows_older(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    made.add_group("billing", {0: 1, 1: 0, 2: 0})
    made.add_group("read", {0: 4, 1: 1, 2: 0})
    first = await made.look()
    assert rows(first.lag)["billing orders main"] == (4, (10_000 - 2) / 1000)
    assert rows(first.pairs)["billing orders"][2:4] == (0, 2)
    monkeypatch.setattr(made.watched.queue_stats, "store_time", None)  # nothing is read again
    monkeypatch.setattr(made.broker.offsets, "get", None)
    monkeypatch.setattr(made.clock, "wall_ms", lambda: NOW_MS + 1_000_000)
    found = await made.look()
    assert rows(found.lag)["billing orders main"] == (4, 1000 + (10_000 - 2) / 1000)
    assert rows(found.lag)["read orders main"] == (0, 0)
    assert rows(found.pairs)["billing orders"][2] == pytest.approx(1000.0)
    assert rows(found.pairs)["billing orders"][3] == 2
    assert rows(found.pairs)["billing orders"][-2:] == rows(first.pairs)["billing orders"][-2:]


async def test_a_group_that_stands_still_loses_what_expires(made: Made) -> None:
    made.add_group("billing", {0: 1, 1: 0, 2: 0})
    await made.look()
    made.broker.state.apply(TopicRecord(0, TopicConfig("orders", 3, 3, min_offsets={0: 3})))
    found = await made.look()
    assert rows(found.lag)["billing orders main"] == (2, (10_000 - 3) / 1000)
    assert rows(found.topics) == {"orders": (5, 3)}


async def test_messages_that_expired_unread_are_not_in_flight(made: Made) -> None:
    made.add_group("billing", {0: 1, 1: 0, 2: 0})
    made.broker.state.apply(TopicRecord(0, TopicConfig("orders", 3, 3, min_offsets={0: 3})))
    in_flight = 1
    assert rows((await made.look()).pairs)["billing orders"][in_flight] == 0
    made.join("billing", "orders")
    made.members.places["billing", "orders", 0] = (4, 4)
    assert rows((await made.look()).pairs)["billing orders"][in_flight] == 1


async def test_state_of_deleted_queues_and_topics_is_dropped(made: Made) -> None:
    made.add_group("billing", {0: 1, 1: 0, 2: 0})
    made.add_group("billing", {0: 0}, topic="other")
    made.add_topic("other", 1)
    made.join("billing", "orders", "other")
    assert len(rows((await made.look()).group_queues)) == 4
    made.broker.state.topics["orders"] = TopicConfig("orders", 2, 2)
    del made.broker.state.topics["other"]
    made.broker.state.offsets["billing"] = {("orders", 0): 1, ("orders", 1): 0}
    made.members.topics["billing"] = ["orders"]
    found = await made.look()
    assert [*rows(found.pairs)] == ["billing orders"]
    assert [*rows(found.group_queues)] == ["billing orders 0", "billing orders 1"]
    (known,) = made.sampler._memory.values()
    assert known.queues.keys() == {("orders", 0), ("orders", 1)}
    assert known.pairs.keys() == {"orders"}


async def test_a_queue_shows_where_it_began_when_the_groups_offsets_were_read(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    made.add_group("billing", {0: 1, 1: 1, 2: 0})
    made.join("billing", "orders")
    await made.look()
    topics = LagSeries.topics

    async def expires(rows: LagSeries, *given: Any) -> None:
        """Messages of queue 0 are hidden during the sample, after its groups were read."""
        made.broker.state.topics["orders"] = TopicConfig("orders", 3, 3, min_offsets={0: 3})
        await topics(rows, *given)

    monkeypatch.setattr(LagSeries, "topics", expires)
    found = await made.look()
    assert rows(found.group_queues)["billing orders 0"][0] == 1
    assert rows(found.queues)["orders 0"] == (4, 0), "the group has not lost anything"
    assert rows((await made.look()).queues)["orders 0"] == (4, 3)


async def test_offsets_in_a_topic_that_is_gone_are_counted_as_unknown(made: Made) -> None:
    made.add_group("billing", {3: 6}, topic="gone")
    found = await made.look()
    unknown = (None, None, None, None, None, 0, 1, 0, None, None, None)
    assert rows(found.pairs)["billing gone"] == unknown
    assert rows(found.lag) == {"billing gone main": (None, None)}
    assert rows(found.group_queues) == {"billing gone 3": (6, None, None)}


async def test_messages_on_their_way_to_dispatch_are_not_lag_yet(made: Made) -> None:
    made.add_group("billing", {0: 4, 1: 1, 2: 0})
    await made.look()
    made.broker.now_ms += 50
    entries = batch.encode([WireMessage(b"late")])
    made.broker.append_now([Run("orders", 1, entries, 1, HOST, HOST, 0)])
    found = await made.look()
    assert rows(found.lag) == {"billing orders main": (0, 0)}
    assert found.times == LogTimes(FIRST_MS + 55, FIRST_MS + 55, FIRST_MS + 55)
    assert rows(found.queues)["orders 1"] == (1, 0)
    made.broker.dispatch()
    found = await made.look()
    assert rows(found.lag)["billing orders main"][0] == 1
    assert rows(found.queues)["orders 1"] == (2, 0)


async def test_a_slave_shows_the_times_of_its_log_and_nothing_of_groups(made: Made) -> None:
    made.add_group("billing", {0: 1})
    made.sampler.connect(made.log.times, None)
    found = await made.look()
    assert found.times is not None
    assert not found.lag.labels
    assert not found.topics.labels
    assert not found.queues.labels


async def test_series_by_queue_are_bounded_and_what_is_left_out_is_counted(tmp_path: Path) -> None:
    made = Made(tmp_path / "store", queue_series_max=13)
    made.add_topic("other", 2)
    made.add_group("a", {0: 4, 1: 1, 2: 0})
    made.add_group("b", {0: 1, 1: 1, 2: 0})
    found = await made.look()
    # b lags: its three queues take 15 series, so two of them are in; 3 are left for a's first.
    assert [*rows(found.group_queues)] == ["b orders 0", "b orders 1", "a orders 0"]
    assert [*rows(found.queues)] == ["orders 0", "orders 1"]
    assert (found.queues_left_out, found.group_queues_left_out) == (3, 3)
    none = LagSampler(made.clock, 0)
    none.connect(made.log.times, made.watched)
    await none.refresh()
    assert none.found is not None
    assert (rows(none.found.queues), none.found.queues_left_out) == ({}, 0)
    made.broker.close()


def numbers(found: SampleTables) -> dict[str, float | None]:
    """The member's number of each queue that has a row."""
    return {labels: values[2] for labels, values in rows(found.group_queues).items()}


async def test_queues_of_a_member_share_its_number_and_a_queue_without_one_has_0(
    made: Made,
) -> None:
    made.add_group("billing", {0: 1, 1: 1})
    made.join("billing", "orders")
    held = made.members.numbers["billing"] = {("orders", 0): 7, ("orders", 1): 0, ("orders", 2): 7}
    expected: dict[str, float | None] = {
        "billing orders 0": 7,
        "billing orders 1": 0,
        "billing orders 2": 7,  # though it never committed there
    }
    found = await made.look()
    assert numbers(found) == expected
    before = made.sampler.found
    assert numbers(await made.look()) == expected
    assert made.sampler.found is not before
    held["orders", 1] = 8  # nothing else has moved
    assert numbers(await made.look())["billing orders 1"] == 8


async def test_a_queue_whose_holder_is_unknown_has_no_member_number(made: Made) -> None:
    """Unknown is not 0: otherwise a consumer that only commits would have queues without
    holders."""
    made.add_group("billing", {0: 1, 1: 1})
    assert set(numbers(await made.look()).values()) == {None}
    assert set(numbers(await made.look()).values()) == {None}, "nor while it stands still"
    made.join("billing", "orders")
    made.members.numbers["billing"] = {("orders", 0): None}
    found = await made.look()
    assert numbers(found)["billing orders 0"] is None
    assert numbers(found)["billing orders 1"] == 1
    made.members.counts.clear()
    assert set(numbers(await made.look()).values()) == {None}


async def test_a_group_that_an_operator_paused_is_shown_as_such(made: Made) -> None:
    made.broker.state.groups["off"] = GroupConfig("off", consume_enabled=False)
    assert rows((await made.look()).groups) == {"off": (0, 60.0, 0, 0)}


async def test_the_topics_of_a_broadcasting_group_are_shown_without_lag(made: Made) -> None:
    # They were not shown at all: lag analytics could not report that it does not judge them.
    made.broker.state.groups["all"] = GroupConfig("all", broadcast=True)
    made.join("all", "orders")
    found = await made.look()
    assert rows(found.lag) == {"all orders main": (None, None)}
    assert rows(found.groups) == {"all": (1, 60.0, 1, 1)}
    assert rows(found.group_queues) == {}
    assert rows(found.queues) == {"orders 0": (4, 0), "orders 1": (1, 0), "orders 2": (0, 0)}
    names = [each.name for each in OF_PAIRS]
    values = dict(zip(names, rows(found.pairs)["all orders"], strict=True))
    assert {name: value for name, value in values.items() if value is not None} == {
        "tidemark_group_ahead_queues": 0,
        "tidemark_group_unknown_queues": 0,
        "tidemark_group_subscribed": 1,
    }
    made.members.topics.clear()
    made.members.counts.clear()
    assert rows((await made.look()).pairs) == {}
    # It may be changed while it has no members; then it has lag like any other.
    made.broker.state.groups["all"] = GroupConfig("all")
    made.add_group("all", {0: 1})
    assert rows((await made.look()).lag)["all orders main"][0] == 3


async def test_the_registry_shows_the_values_of_the_sample(made: Made) -> None:
    made.add_group("billing", {0: 1, 1: 1, 2: 6})
    made.join("billing", "orders")
    registry = Registry("broker")
    gauges = LagGauges(registry, made.clock, 10)
    before = samples(registry).keys()
    gauges.connect(made.log.times, made.watched)
    await gauges.refresh()
    shown = {name: value for name, value in samples(registry).items() if name not in before}
    assert shown.pop("tidemark_broker_look_duration_seconds") == 0
    newest_s = (FIRST_MS + 5) / 1000
    assert shown == {
        "tidemark_broker_look_timestamp_seconds": NOW_MS / 1000,
        "tidemark_log_newest_message_timestamp_seconds": newest_s,
        "tidemark_log_confirm_message_timestamp_seconds": newest_s,
        "tidemark_log_dispatched_message_timestamp_seconds": newest_s,
        'tidemark_group_lag_messages{group="billing",topic="orders",kind="main"}': 3,
        'tidemark_group_lag_seconds{group="billing",topic="orders",kind="main"}': 9.998,
        **{
            f'tidemark_group_{name}{{group="billing",topic="orders"}}': value
            for name, value in {
                "lag_queue_max_messages": 3,
                "inflight_messages": 0,
                "commit_age_seconds": 0,
                "lagging_queues": 1,
                "stuck_queues": 0,
                "ahead_queues": 1,
                "unknown_queues": 1,
                "subscribed": 1,
                "oldest_undelivered_timestamp_seconds": NOW_MS / 1000 - 9.998,
                "oldest_uncommitted_timestamp_seconds": NOW_MS / 1000 - 9.998,
                "awaiting_delivery_timestamp_seconds": NOW_MS / 1000 - 9.998,
            }.items()
        },
        'tidemark_group_members{group="billing"}': 1,
        'tidemark_group_lag_objective_seconds{group="billing"}': 5,
        'tidemark_group_consume_enabled{group="billing"}': 1,
        'tidemark_group_broadcasting{group="billing"}': 0,
        'tidemark_topic_max_offset_messages{topic="orders"}': 5,
        'tidemark_topic_min_offset_messages{topic="orders"}': 0,
        'tidemark_queue_max_offset_messages{topic="orders",queue="0"}': 4,
        'tidemark_queue_max_offset_messages{topic="orders",queue="1"}': 1,
        'tidemark_queue_min_offset_messages{topic="orders",queue="0"}': 0,
        'tidemark_queue_min_offset_messages{topic="orders",queue="1"}': 0,
        **{
            f'tidemark_group_queue_{name}{{group="billing",topic="orders",queue="{queue}"}}': value
            for name, queue, value in (
                ("offset_messages", 0, 1),
                ("offset_messages", 1, 1),
                ("oldest_timestamp_seconds", 0, NOW_MS / 1000 - 9.998),
                ("member_number", 0, 1),
                ("member_number", 1, 1),
            )
        },
        **{
            f'tidemark_telemetry_series_dropped_total{{family="tidemark_{name}"}}': 1
            for name in (
                "queue_max_offset_messages",
                "queue_min_offset_messages",
                "group_queue_offset_messages",
                "group_queue_oldest_timestamp_seconds",
                "group_queue_member_number",
            )
        },
    }
    made.clock.now_s += 1000.0
    await gauges.refresh()
    name = 'tidemark_telemetry_series_dropped_total{family="tidemark_queue_max_offset_messages"}'
    assert samples(registry)[name] == 1, "the same label set is left out again"


async def test_a_group_without_members_keeps_its_series_while_it_has_lag(made: Made) -> None:
    """Otherwise no alert would fire when it stops: the rule needs its members and its objective."""
    made.add_group("idle", {0: 4, 1: 1, 2: 0})
    made.add_group("stopped", {0: 1, 1: 1, 2: 0})
    made.add_group("works", {0: 4, 1: 1, 2: 0})
    made.join("works", "orders")
    found = (await made.look()).groups
    weights = {group: weight for (group,), weight in zip(found.labels, found.weights, strict=True)}
    assert weights["idle"] == 0 < weights["stopped"] < weights["works"]


async def test_a_look_serves_for_a_second_and_scrapes_share_it(made: Made) -> None:
    await asyncio.gather(made.sampler.refresh(), made.sampler.refresh())
    first = made.sampler.found
    made.clock.now_s += AGAIN_S - 0.01
    await made.sampler.refresh()
    assert made.sampler.found is first
    made.clock.now_s += 0.01
    await made.sampler.refresh()
    assert made.sampler.found is not first


async def test_a_look_that_takes_long_serves_for_longer(made: Made) -> None:
    made.add_group("billing", {0: 1})
    made.clock.look_takes_s = 0.1
    await made.sampler.refresh()
    made.clock.look_takes_s = 0.0
    first = made.sampler.found
    assert first is not None
    assert first.took_s > AGAIN_S
    made.clock.now_s += first.took_s * REST / 2  # nearly all of it was spent in slices
    await made.sampler.refresh()
    assert made.sampler.found is first
    made.clock.now_s += first.took_s * REST / 2
    await made.sampler.refresh()
    assert made.sampler.found is not first


async def test_a_scrape_does_not_wait_for_ever(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    first = await made.look()
    may_end = asyncio.Event()
    held: list[str] = []

    async def slowly(*_: object) -> set[str]:
        held.append("waits")
        await may_end.wait()
        return set()

    monkeypatch.setattr(made.watched.topic_stats, "follow", slowly)
    monkeypatch.setattr(look_module, "WAIT_S", 0.01)
    assert await made.look() is first, "it shows the look before"
    assert await made.look() is first
    assert held == ["waits"], "one look at a time"
    may_end.set()
    monkeypatch.setattr(look_module, "WAIT_S", 5.0)
    assert await made.look() is not first


async def test_a_look_that_fails_leaves_the_one_before_and_all_is_looked_at_anew(
    made: Made, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Otherwise one file that cannot be opened would hide every figure of the broker."""
    made.add_group("billing", {0: 4, 1: 1, 2: 0})
    first = await made.look()
    made.broker.offsets.accept("billing", {("orders", 1): 0})

    async def fails(*_: object) -> None:
        raise OSError(24, "Too many open files")

    with monkeypatch.context() as patched:
        patched.setattr(LagSeries, "topics", fails)
        assert await made.look() is first
    assert [each.event for each in caplog.records] == ["internal-error"]  # type: ignore[attr-defined]
    assert rows((await made.look()).lag)["billing orders main"][0] == 1


async def test_a_look_that_ends_after_the_node_lost_its_role_is_not_shown(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_end = asyncio.Event()

    async def slowly(*_: object) -> set[str]:
        await may_end.wait()
        return set()

    monkeypatch.setattr(made.watched.topic_stats, "follow", slowly)
    refreshing = asyncio.create_task(made.sampler.refresh())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    made.sampler.disconnect()
    may_end.set()
    await refreshing
    assert made.sampler.found is None


async def test_a_queue_whose_commit_stands_still_is_stuck_after_a_minute(made: Made) -> None:
    made.add_group("billing", {0: 1, 1: 1, 2: 0})
    made.join("billing", "orders")
    found = await made.look()
    assert rows(found.pairs)["billing orders"][4] == 0
    found = await made.look()
    assert rows(found.pairs)["billing orders"][2] == pytest.approx(1000.0)
    assert rows(found.pairs)["billing orders"][4] == 1
    made.broker.offsets.accept("billing", {("orders", 0): 2})
    assert rows((await made.look()).pairs)["billing orders"][4] == 0
