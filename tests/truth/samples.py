"""A workload as samples of the real metric families: what each process would have exposed. Pure.

Step before: `reading` has the state at each sample. Next: `exposition` writes one scrape or a file
with all of them; `analytics.kernel.shape` must find in them what `tables` has.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from tests.truth.node_tables import target
from tests.truth.reading import (
    Totals,
    master,
    pair_sample,
    position,
    stages,
    started,
)
from tests.truth.steps import ABSENT, SECOND, Floats, Ints, Mask, by_clock
from tests.truth.workload import RECORD_SIZE, Broker, Pair, Truth


class Target(NamedTuple):
    """A process that is scraped."""

    broker: str
    node: str
    service: str

    def labels(self, cluster: str) -> dict[str, str]:
        """The labels that scraping adds."""
        return {
            "cluster": cluster,
            "broker": self.broker,
            "replica": self.node,
            "service": self.service,
            "job": f"tidemark-{self.service}",
            "instance": target(self.node, self.service),
        }


class Line(NamedTuple):
    """One series of a target: its values at each sample, NaN where it is not exposed."""

    family: str
    labels: dict[str, str]
    values: Floats


def targets(truth: Truth) -> list[Target]:
    """All processes that export samples."""
    return [
        Target(broker.name, node, service)
        for broker in truth.brokers
        for node in broker.nodes
        for service in ("broker", "reput", "ha")
    ]


def lines(truth: Truth, of: Target, sample_times: Ints) -> list[Line]:
    """What a target exposes at each sample, without the labels that scraping adds."""
    broker = truth.broker(of.broker)
    node = broker.nodes.index(of.node)
    begun = started(truth, broker, node, sample_times)
    off = broker.clock_off
    made = [Line("tidemark_up_since_timestamp_seconds", {}, _seconds(by_clock(begun, off)))]
    if of.service == "broker":
        made += _log(broker, sample_times)
        mine = master(broker, sample_times) == node
        if mine.any():
            made += _queues(truth, broker, sample_times, mine)
            for pair in truth.pairs:
                if pair.broker == broker.name:
                    made += _pair(truth, pair, sample_times, mine)
        made.append(
            Line("tidemark_broker_look_timestamp_seconds", {}, _seconds(sample_times + off))
        )
    elif of.service == "reput":
        at = stages(broker, sample_times)
        made.append(Line("tidemark_dispatch_offset_bytes", {}, _numbers(at.dispatched)))
    else:
        made += _ha(truth, broker, node, sample_times)
    return made


def _log(broker: Broker, sample_times: Ints) -> Iterator[Line]:
    at = stages(broker, sample_times)
    yield Line("tidemark_log_min_offset_bytes", {}, _numbers(at.min_offset))
    yield Line("tidemark_log_max_offset_bytes", {}, _numbers(at.max_offset))
    yield Line("tidemark_log_flushed_offset_bytes", {}, _numbers(at.max_offset))
    yield Line("tidemark_log_confirm_offset_bytes", {}, _numbers(at.confirm))
    yield Line("tidemark_log_dispatched_offset_bytes", {}, _numbers(at.dispatched))
    yield Line(
        "tidemark_log_oldest_message_timestamp_seconds",
        {},
        _seconds(by_clock(at.t_min, broker.clock_off)),
    )
    yield Line(
        "tidemark_log_newest_message_timestamp_seconds",
        {},
        _seconds(by_clock(at.t_max, broker.clock_off)),
    )
    yield Line(
        "tidemark_log_confirm_message_timestamp_seconds",
        {},
        _seconds(by_clock(at.t_confirm, broker.clock_off)),
    )
    yield Line(
        "tidemark_log_dispatched_message_timestamp_seconds",
        {},
        _seconds(by_clock(at.t_dispatched, broker.clock_off)),
    )
    free, capacity = broker.log.free_bytes(sample_times), broker.log.capacity_bytes
    yield Line("tidemark_store_free_bytes", {"volume": "log"}, _numbers(free))
    whole = np.full(len(sample_times), float(capacity))
    yield Line("tidemark_store_capacity_bytes", {"volume": "log"}, whole)


def _queues(truth: Truth, broker: Broker, sample_times: Ints, mine: Mask) -> Iterator[Line]:
    seen = set()
    for pair in truth.pairs:
        for reading in pair.readings:
            queue = reading.queue
            key = (queue.topic, queue.queue)
            if queue.broker != broker.name or key in seen:
                continue
            seen.add(key)
            labels = {"topic": queue.topic, "queue": str(queue.queue)}
            at = position(reading, sample_times)
            low, high = _numbers(at.min_offset, mine), _numbers(at.max_offset, mine)
            yield Line("tidemark_queue_min_offset_messages", labels, low)
            yield Line("tidemark_queue_max_offset_messages", labels, high)
    for topic in sorted({topic for topic, _ in seen}):
        # All groups of a topic read the same queues: the first one's show what came in.
        pair = next(
            each for each in truth.pairs if (each.topic, each.broker) == (topic, broker.name)
        )
        arrived = pair_sample(truth, pair, sample_times).arrived
        total = {"topic": topic, "kind": "normal"}
        yield Line("tidemark_broker_messages_in_total", total, _numbers(arrived, mine))
        size = _numbers(arrived * RECORD_SIZE, mine)
        yield Line("tidemark_broker_received_bytes_total", {"topic": topic}, size)


def _pair(truth: Truth, pair: Pair, sample_times: Ints, mine: Mask) -> Iterator[Line]:
    labels = {"group": pair.group, "topic": pair.topic}
    subscribed, off = pair.subscribed(sample_times), truth.broker(pair.broker).clock_off
    here = mine & (subscribed != ABSENT)
    sample = pair_sample(truth, pair, sample_times)
    yield Line("tidemark_group_subscribed", labels, _numbers(subscribed, here))
    group = {"group": pair.group}
    if pair is next(each for each in truth.pairs if each.group == pair.group):
        objective = np.where(here, pair.objective_seconds, np.nan)
        yield Line("tidemark_group_members", group, _numbers(pair.members(sample_times), here))
        yield Line("tidemark_group_lag_objective_seconds", group, objective)
        if len(pair.paused.at):
            enabled = _numbers(1 - pair.paused(sample_times), here)
            yield Line("tidemark_group_consume_enabled", group, enabled)
        if pair.broadcasting is not None:
            broadcasting = np.where(here, float(pair.broadcasting), np.nan)
            yield Line("tidemark_group_broadcasting", group, broadcasting)
    if pair.broadcasting:
        yield Line("tidemark_group_unknown_queues", labels, np.where(here, 0.0, np.nan))
        return
    unknown = _numbers(sample.unknown_queues, here)
    yield Line("tidemark_group_unknown_queues", labels, unknown)
    yield Line("tidemark_group_inflight_messages", labels, _numbers(sample.inflight, here))
    for name, at in (
        ("oldest_undelivered", sample.oldest_undelivered),
        ("oldest_uncommitted", sample.oldest_uncommitted),
        ("awaiting_delivery", sample.awaiting_delivery),
    ):
        family = f"tidemark_group_{name}_timestamp_seconds"
        yield Line(family, labels, _seconds(by_clock(at, off), here))
    yield from _totals(labels, sample.totals, sample.redelivered, here)
    for reading in pair.readings:
        of_queue = labels | {"queue": str(reading.queue.queue)}
        at_sample = position(reading, sample_times)
        commit = _numbers(at_sample.commit, here)
        yield Line("tidemark_group_queue_offset_messages", of_queue, commit)
        family = "tidemark_group_queue_oldest_timestamp_seconds"
        yield Line(family, of_queue, _seconds(by_clock(at_sample.head_exported, off), here))
        member = _numbers(at_sample.member, here)
        yield Line("tidemark_group_queue_member_number", of_queue, member)


def _totals(labels: dict[str, str], count: Totals, again: Ints, here: Mask) -> Iterator[Line]:
    yield Line("tidemark_group_consumed_messages_total", labels, _numbers(count.consumed, here))
    for reason, skipped in (("expired", count.expired), ("reset_forward", count.reset_forward)):
        family = "tidemark_group_skipped_messages_total"
        yield Line(family, labels | {"reason": reason}, _numbers(skipped, here))
    for direction, resets in (
        ("backward", count.resets_backward),
        ("forward", count.resets_forward),
    ):
        family = "tidemark_group_offset_resets_total"
        yield Line(family, labels | {"direction": direction}, _numbers(resets, here))
    yield Line("tidemark_group_redelivered_messages_total", labels, _numbers(again, here))


def _ha(truth: Truth, broker: Broker, node: int, sample_times: Ints) -> Iterator[Line]:
    del truth
    mine = master(broker, sample_times) == node
    yield Line("tidemark_ha_epoch", {}, _numbers(broker.epoch(sample_times)))
    for role in ("master", "slave", "candidate", "fenced", "halted"):
        holds = mine if role == "master" else ~mine if role == "slave" else mine & ~mine
        yield Line("tidemark_ha_role", {"role": role}, holds.astype(np.float64))
    for peer, name in enumerate(broker.nodes):
        if peer == node:
            continue
        labels = {"peer": name}
        lag = _numbers(broker.replica_lag_bytes(sample_times), mine)
        yield Line("tidemark_ha_replica_lag_bytes", labels, lag)
        yield Line("tidemark_ha_replica_lag_seconds", labels, np.where(mine, 0.0, np.nan))
        yield Line("tidemark_ha_replica_in_sync", labels, np.where(mine, 1.0, np.nan))
        yield Line("tidemark_ha_replica_connected", labels, np.where(mine, 1.0, np.nan))
        skew = broker.skew_microseconds(sample_times) / SECOND
        yield Line("tidemark_ha_clock_skew_seconds", labels, np.where(mine, skew, np.nan))


def _numbers(values: Ints, here: Mask | None = None) -> Floats:
    shown = values != ABSENT
    if here is not None:
        shown &= here
    return np.where(shown, values.astype(np.float64), np.nan)


def _seconds(values: Ints, here: Mask | None = None) -> Floats:
    return _numbers(values, here) / SECOND
