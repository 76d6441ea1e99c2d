"""Judges of what clients receive: acknowledged sends, and messages and state that are served."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from shared.state.state import BrokerState
from tests.simulation.replication.confirmed import Confirmed, StateContent
from tests.simulation.replication.confirmed_log import ANSWER_MAX_US, must_be_durable
from tests.simulation.replication.lease_history import LeaseHistory
from tests.simulation.replication.machine import Machine
from tests.simulation.replication.violation import Violation
from tidemark.formats.checkpoint import Slot

LATE_US: Final = 500_000
"""Senders wait less than this for a member that shuts down cleanly."""


class Acked(NamedTuple):
    """A send that was answered with success."""

    start: int
    end: int
    copies: int


class ClientAnswers(LeaseHistory):
    """The answers that the clients of a group received."""

    def __init__(self, nodes: Callable[[], list[Machine]]) -> None:
        super().__init__(nodes)
        self.acked: list[Acked] = []
        self.stored_count = 0
        self.late_count = 0
        """Number of stored sends that were answered later than ``LATE_US``."""
        self.reads_count = 0
        self._covered: set[tuple[str, int]] = set()
        """(node, epoch) pairs whose queues covered the epoch record when reads began."""

    def acknowledged(
        self, node: Machine, start: int, end: int, body: bytes, copies: int, *, by_the_group: bool
    ) -> None:
        """Check a successful answer (A): the record is confirmed, and as many nodes have it as
        reported."""
        self.answers(node, "acknowledges")
        raw, is_damaged = node.log(start, end), by_the_group and node.name in self.damaged
        if is_damaged:  # between the confirmation and the answer
            raw = bytes(self.confirmed[start:end])
        if body not in raw:
            raise Violation(
                f"{node.name} acknowledged [{start}, {end}); that range has another record"
            )
        if by_the_group and len(self.published) < self.min_in_sync:
            raise Violation(
                f"{node.name} acknowledges with {len(self.published)} members, {self.min_in_sync} "
                "is the "
                "minimum"
            )
        if by_the_group and self.confirmed[start:end] != raw:
            raise Violation(
                f"A: {node.name} acknowledged the record at {start}, which the confirmed history "
                f"of {len(self.confirmed)} bytes does not have there"
            )
        must_be_durable(node, start, end)
        found = sum(other.durable_log(start, end) == raw for other in self._nodes())
        found += len(self.replaced) + is_damaged
        if found < copies:
            raise Violation(
                f"{node.name} reports {copies} copies of the record at {start}; {found} have it"
            )
        self.acked.append(Acked(start, end, copies))

    def stored(self, node: Machine, admitted_us: int) -> None:
        """Check that the page allowed a stored send at some time since admitted_us, when it
        arrived."""
        self.stored_count += 1
        self.late_count += self._now_us() - admitted_us > LATE_US
        broker = node.processes.get("broker")
        held, fenced = node.slot(Slot.SENDS_HELD), node.slot(Slot.FENCED)
        few = node.slot(Slot.IN_SYNC_SIZE) < node.slot(Slot.MIN_IN_SYNC)
        watched = (Slot.SENDS_HELD, Slot.FENCED, Slot.IN_SYNC_SIZE, Slot.MIN_IN_SYNC)
        changed_us = max(node.changed_us.get(slot, 0) for slot in watched)
        if broker is None or max(changed_us, broker.resumed_us) >= admitted_us:
            return  # The page may have allowed the send when it arrived.
        if held or fenced or few:
            why = "sends are held" if held else "it is fenced" if fenced else "the set is too small"
            raise Violation(f"the broker of {node.name} stores a message while {why}")

    def answers(self, node: Machine, what: str) -> None:
        """Check that the broker loaded grant and deadline, and found both valid, in the step of its
        loop in which it answers for the group."""
        broker = node.processes.get("broker")
        if broker is None or broker.loop is None or self.clocks_wrong:
            return
        last_check, step = broker.last_check, broker.loop.steps
        if broker.resumed_at == step:
            # The process was paused between the loads and the answer. No program can prevent that.
            return
        if last_check.step != step or not last_check.in_time:
            raise Violation(
                f"{node.name} {what} in step {step}; it loaded its grant in step {last_check.step}"
                + ("" if last_check.in_time else ", after the deadline")
            )
        serving = node.slot(Slot.SERVING_EPOCH)
        if serving and serving < self.epoch and self._now_us() - self.won_us > ANSWER_MAX_US:
            raise Violation(f"{node.name} {what} in epoch {serving}, but {self.epoch} was acquired")

    def read(self, node: Machine, end: int) -> None:
        """Check that a consumer sees only the confirmed log up to end (C)."""
        self._must_match_confirmed(node, end, "shows consumers")
        self.reads_count += 1

    def pulled(
        self,
        node: Machine,
        topic: str,
        queue: int,
        offset: int,
        found: Sequence[bytes],
        max_offset: int,
        dispatched: int,
        dispatched_since: int,
    ) -> None:
        """Check the messages that a consumer received from a queue offset on. dispatched and
        dispatched_since: the dispatched offset before and after the read."""
        fewest = len(self.records.seen(topic, queue, dispatched))
        known = self.records.seen(topic, queue, dispatched_since)
        wanted = known[offset : offset + len(found)]
        # A log copied since then has no queue file for a queue whose messages have all expired.
        live = bisect_left(known, node.begins_at, key=lambda place: place.start)
        is_short = max_offset < fewest or (fewest > offset >= live and not found)
        is_short = is_short and fewest > live
        if max_offset > len(known) or (is_short and node.name not in self.lost_queues):
            raise Violation(
                f"{node.name} returns {len(found)} messages of {topic}/{queue} from {offset} on, "
                "with "
                f"{max_offset} as max offset; up to {dispatched} it has {fewest}"
            )
        if found != [bytes(self.confirmed[place.start : place.end]) for place in wanted]:
            raise Violation(
                f"{node.name} returns wrong messages of {topic}/{queue} from {offset} on"
            )

    def state(self, node: Machine, state: BrokerState, since: int, end: int) -> None:
        """Check that the state that a slave serves is the state of its confirmed log at some record
        between since and end: it lacks nothing below since, and has nothing above end."""
        served, possible = StateContent.of(state), self.records.states(since, end)
        if served not in reversed(possible):
            raise Violation(
                f"the state that {node.name} serves is none of its confirmed log from {since} to "
                f"{end}: {served.differences(possible[-1])}"
            )

    def state_at_master(self, node: Machine, state: BrokerState, opened: int) -> None:
        """Check that a master serves every topic with the value that the log had when its epoch was
        opened, or a later one."""
        later = self.records.states(opened, len(self.confirmed))
        lacking = [
            name
            for name in later[0].topics
            if state.topics.get(name) not in [each.topics.get(name) for each in later]
        ]
        if lacking:
            raise Violation(f"{node.name} serves without the topics {lacking} of its log")

    def begins_with(self, node: Machine, state: BrokerState) -> None:
        """Check that a master begins with the state of its whole log, which is not confirmed yet up
        to its end."""
        if node.name in self.damaged or self.is_forced:
            return
        served = StateContent.of(state)
        wanted = self._records_of(node).states(node.end, node.end)[-1]
        if served != wanted:
            raise Violation(
                f"{node.name} becomes the master with a state that its log of {node.end} bytes "
                f"does not have: {served.differences(wanted)}"
            )

    def ends_with(self, node: Machine, state: BrokerState) -> None:
        """Check that the log has all offsets, topics and groups that a master served until it
        stopped. It serves changes of topics and groups once they are confirmed, so the log may have
        later ones."""
        if node.name in self.damaged or self.is_forced or node.is_full or node.has_failed:
            return
        served = StateContent.of(state)
        logged = self._records_of(node).states(node.slot(Slot.EPOCH_RECORD_END), node.end)
        if not served.is_of(logged):
            raise Violation(
                f"the broker of {node.name} has shut down, and its log lacks what it served: "
                f"{served.differences(logged[-1])}"
            )

    def _records_of(self, node: Machine) -> Confirmed:
        """The records of a node's whole log. Above its confirm offset they may never be confirmed:
        a later master may have other ones there."""
        confirm = node.slot(Slot.CONFIRM)
        tail = node.log(confirm, node.end)
        if self.confirmed[confirm : node.end] == tail:
            return self.records
        records = Confirmed()
        records.extend(bytes(self.confirmed[:confirm]) + tail)
        return records

    def read_at_master(self, node: Machine, epoch: int, newest_before: int) -> None:
        """Check reads from a master. newest_before: epoch of the lease before the broker checked
        its grant."""
        opened = node.slot(Slot.EPOCH_RECORD_END)
        if node.slot(Slot.SERVING_EPOCH) == epoch and (node.name, epoch) not in self._covered:
            if min(node.slot(Slot.DISPATCHED), node.slot(Slot.CONFIRM)) < opened:
                raise Violation(f"{node.name} serves reads before its queues cover epoch {epoch}")
            # A reput that rebuilds the queues later starts from an earlier offset. Every read is
            # checked on its own.
            self._covered.add((node.name, epoch))
        if epoch < newest_before and not self.clocks_wrong:
            raise Violation(
                f"{node.name} answers reads as the master of epoch {epoch}, and epoch "
                f"{newest_before} was acquired before it loaded its grant"
            )
