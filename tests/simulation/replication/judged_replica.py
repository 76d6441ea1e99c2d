"""The replica of one start of ha, with checks before and after each of its decisions.

The trace has every event and every effect of a replica in a short form.
"""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING, Any, Final

import msgspec

from services.ha.core import effects as do
from services.ha.core.effects import Effect, LeaseCreate, LeasePut
from services.ha.core.events import (
    CopyFault,
    Done,
    Event,
    Failed,
    LeaseAnswered,
    LeaseOutcome,
    LinkUp,
    NodeSnapshot,
    Received,
    Tick,
)
from services.ha.core.mastership import Mastership
from services.ha.core.replica import Replica
from services.ha.lease.value import Member, Stored
from services.ha.wire.frames import BadFrame, Frame, FrameType
from services.ha.wire.payloads import Ack, Append, Hello, HelloOk, Payload, StatusOk, parse
from services.ha.wire.versions import SPOKEN
from tests.simulation.replication.history import REPLICA_FRAMES
from tests.simulation.replication.known_marks import LeaseObstacles
from tests.simulation.replication.member_rules import MemberRules
from tests.simulation.replication.plan import WINDOW_SIZE
from tests.simulation.replication.repeats import Repeats
from tests.simulation.replication.steps_taken import StepsTaken
from tests.simulation.replication.violation import Violation
from tidemark.errors import CorruptRecord
from tidemark.formats.checkpoint import Slot

if TYPE_CHECKING:
    from tests.simulation.replication.ha import Ha

IMPOSSIBLE: Final = ("ack-refused", "bad-stream")
"""Log events that only a corrupted frame or a bug can cause."""
IMPOSSIBLE_REASONS: Final = re.compile(
    r"HELLO_OK|RESYNC_REQUIRED|APPEND|an ACK|a (?:second )?HELLO|no window|copied to|bytes at|"
    r"bytes of epoch|epoch \d+ from|compared instead|point \d+ beyond|files of|"
    r"no epoch in the table|HELLO of (\w+) in \w+ on the link of (?!\1$)"
)
"""Reasons to close a link that only a peer which violates the protocol can cause. A handshake may
have begun before its node was copied anew: the HELLO has the later identity then."""
_MISSING_VALUE: Final = re.compile(r"\bNone\b")
"""A missing value that was formatted into a sentence."""
_SPOKEN: Final = range(SPOKEN.lowest, SPOKEN.highest + 1)


class JudgedReplica:
    """The replica, with checks before and after each of its decisions."""

    def __init__(self, ha: Ha, replica: Replica) -> None:
        self._ha, self._replica = ha, replica
        self._counted: dict[Member, int] = {}
        self._repeats = Repeats(ha.node)
        self._steps = StepsTaken(ha, replica)
        self._members = ha.members = MemberRules(ha, replica)
        self._obstacles = LeaseObstacles(ha, replica)
        self._read: Stored | None = None
        """The lease of the last read; None if another request has ended since."""
        self._wanted_epoch = 0

    def handle(self, event: Event, now_ms: int) -> list[Effect]:
        """Handle the event as the replica does, and check the outcome."""
        ha = self._ha
        before = self._replica.leadership.term
        if isinstance(event, Done) and event.durable:
            ha.history.reports_end(ha.machine, event.durable)
        if isinstance(event, LeaseAnswered):
            self._read = event.stored if event.outcome is LeaseOutcome.FOUND else None
        if isinstance(event, CopyFault) and event.code == CorruptRecord.code:
            self._must_have_noted_damage()
        if isinstance(event, Received) and event.frame.type is FrameType.CAMPAIGN_NOW:
            ha.history.campaign_now_us[ha.node] = ha.machine.timeline.now_us
        if isinstance(event, Received) and not ha.history.epoch:
            self._note_status(event.frame)
        if isinstance(event, LinkUp) and event.outbound:
            self._repeats.connected(event.peer.node)
        seen = self._replica.context.session.stored
        effects = self._replica.handle(event, now_ms)
        if self._replica.context.session.stored != seen:
            ha.seen_us = ha.machine.timeline.now_us
        self._members.handled(event, _ack_in(event), now_ms)
        self._repeats.happened(event, now_ms)
        self._repeats.checks_links(
            in_order=self._replica.following.linked, is_damaged=bool(ha.history.damaged)
        )
        if isinstance(event, Done) and event.token == self._repeats.promise:
            self._must_know_its_promise()
        self._steps.handled()
        self._obstacles.happened(event, now_ms)
        own = self._replica.context
        if isinstance(event, Failed) and not (own.alarms or own.ending or own.halted):
            raise Violation(
                f"{ha.node} has no alarm after the failure {event.code}: {event.detail}"
            )
        after = self._replica.leadership.term
        terms = {int(term.epoch) for term in (before, after) if term is not None}
        if ha.write_trace is not None and not isinstance(event, Tick | NodeSnapshot):
            ha.trace(f"event {_short(event)}")
        # The acknowledgements of a term that has ended without its knowledge may be outdated.
        lives = after is not None and after.epoch >= ha.history.epoch
        if after is not None and lives and after._durable != self._counted:
            self._counted = dict(after._durable)
            for member, end in self._counted.items():
                ha.history.counts_ack(ha.machine, member, end)
        for effect in effects:
            self._repeats.does(effect, now_ms)
            self._judge(
                effect, terms, None if before is not after or after is None else after.epoch
            )
        return effects

    def _note_status(self, frame: Frame) -> None:
        match _parsed(frame):
            case StatusOk(node=node):
                self._steps.receives_status(node)

    def _must_have_noted_damage(self) -> None:
        """Check that damage is on the disk before the replica acts on it: the next start would not
        find it again."""
        machine = self._ha.machine
        if not (machine.has_durable_damage or machine.is_full or machine.has_failed):
            raise Violation(f"{machine.name} acts on damage that its next start will not know")

    def _must_know_its_promise(self) -> None:
        """Check that the replica takes as its promise exactly what is durable. A newer one is
        written next."""
        machine, promises = self._ha.machine, self._replica.promises
        known = promises.promised, promises._seen
        durable = machine.durably_promised, machine.durably_seen
        if known != durable:
            raise Violation(
                f"{machine.name} has written its promise and assumes (epoch, lease seen) "
                f"{known}; its disk has {durable}"
            )

    def _judge(self, effect: Effect, terms: set[int], reigns: int | None) -> None:
        ha, history = self._ha, self._ha.history
        if ha.write_trace is not None:
            ha.trace(f"  do {_short(effect)}")
        match effect:
            case do.UseNodes():
                member, version = (
                    self._replica.context.member,
                    self._replica.context.members.version,
                )
                history.used_nodes[member] = max(version, history.used_nodes.get(member, 0))
            case do.Grant():
                history.granted(effect.epoch, ha.holder, ha.machine.boot)
            case do.Stream(link, frame):
                history.acts(frame.epoch, ha.holder, "streams")
                term, now_ms = self._replica.leadership.term, self._replica.context.now_ms
                if term is not None:
                    _must_be_in_the_window(ha.node, term, effect)
                    self._repeats.sends(link, term.confirm.value, now_ms, empty=False)
            case do.Send(link, frame) if frame.type in REPLICA_FRAMES:
                history.sends_to_master(ha.machine, frame)
                match _parsed(frame):
                    case Ack(appended, durable):
                        history.acknowledges(ha.machine, appended, durable)
                    case Hello() as hello:
                        history.sends_hello(ha.machine, hello)
                        self._repeats.sends_hello(link, frame.epoch, len(hello.table), hello.end)
            case do.Send(link, frame):
                match _parsed(frame):
                    case HelloOk() as ok:
                        history.sends_hello_ok(ha.machine, ok)
                    case StatusOk(facts=facts) as status:
                        self._steps.sends_status(status)
                        self._members.shows(facts.lag_ms, self._replica.context.now_ms)
                        history.sends_lags(ha.node, facts.lag_ms)
                        for name, fact in msgspec.structs.asdict(facts).items():
                            _check_sentence(ha.node, name, fact)
                    case Append(size=0) as append:
                        now_ms = self._replica.context.now_ms
                        self._repeats.sends(link, append.confirm, now_ms, empty=True)
            case do.Connect(node):
                session = self._replica.session
                if session.stored is not None and not session.backwards:
                    epoch = self._replica.promises.highest
                    self._repeats.connects(node, epoch, self._replica.context.now_ms)
            case do.PersistPromise():
                self._steps.promises(effect.promised)
            case do.PersistTable(_, entries) if entries:
                history.writes_table(ha.machine, entries, begins=reigns is not None)
            case LeasePut(_, lease, base):
                self._steps.writes_lease(effect)
                self._members.writes_lease(effect)
                self._obstacles.writes_lease(effect)
                if lease.epoch > max(base.lease.epoch, self._wanted_epoch):
                    self._wanted_epoch = lease.epoch
                    if self._read != base:
                        raise Violation(f"{ha.node} takes a lease without reading it right before")
                renews = lease._replace(renewed=0) == base.lease._replace(renewed=0)
                term = self._replica.leadership.term
                switches = term is not None and term.switch is not None and term.switch.fenced
                if switches and lease.holder is None and lease.handover_to is not None:
                    self._must_release_to_target(lease.handover_to)
                history.writes_lease(
                    ha.machine, base.lease, lease, renews=renews, switches=switches
                )
            case LeaseCreate(_, lease):
                history.writes_lease(ha.machine, None, lease)
            case do.Close(reason=reason):
                if IMPOSSIBLE_REASONS.match(reason) and not history.damaged:
                    raise Violation(f"{ha.node} closes a link, for {reason}")
            case do.Publish(slots=slots):
                for slot, value in slots:
                    if slot is Slot.NEEDED_FROM and value:
                        self._must_be_kept(value)
                history.of_terms[ha.process] = terms
                history.reigns[ha.process] = reigns
            case do.Note(event=event, sentence=sentence):
                if event in IMPOSSIBLE and not history.damaged and ha.node not in history.corrupted:
                    raise Violation(f"{ha.node}: {sentence}")
                _check_sentence(ha.node, event, sentence)
            case do.Reply(body=body):
                for name, value in body.items():
                    _check_sentence(ha.node, name, value)

    def _must_be_kept(self, needed: int) -> None:
        """Check that NEEDED_FROM covers every byte that a linked slave has yet to copy."""
        term = self._replica.leadership.term
        for link in () if term is None else term.links.values():
            slave = self._ha.history.node(link.peer.node)
            if slave.incarnation != link.peer.incarnation:
                continue  # The link belongs to a disk that was replaced.
            if link.appended is not None and 0 < slave.end < needed:
                raise Violation(
                    f"{self._ha.node} keeps its log from {needed} on, but {slave.name} has it up "
                    f"to {slave.end}"
                )

    def _must_release_to_target(self, target: str) -> None:
        """Check that a switch releases the lease for the target that the command named."""
        switch = self._replica._switch_orders._switch
        wanted = target if switch is None else self._ha.commands.target_of(switch.token) or target
        if target != wanted:
            raise Violation(f"{self._ha.node} was to switch to {wanted} and switches to {target}")


def _must_be_in_the_window(node: str, term: Mastership, effect: do.Stream) -> None:
    """Check that at most a window of bytes is sent to a slave before it acknowledges: its memory is
    limited."""
    link = term.links.get(effect.link)
    if link is None or link.appended is None:
        return
    ahead = effect.offset + effect.size - link.appended
    if ahead > WINDOW_SIZE:
        raise Violation(f"{node} sends {ahead} bytes ahead on a link, {WINDOW_SIZE} is the limit")


def _check_sentence(node: str, what: str, value: object) -> None:
    """Check that a sentence for people has no empty or missing value in it."""
    if isinstance(value, str) and (
        value != value.strip() or "  " in value or _MISSING_VALUE.search(value)
    ):
        raise Violation(f"{node} writes a sentence with a missing value: {what} {value!r}")


def _ack_in(event: Event) -> Ack | None:
    """The acknowledgement that has arrived, if the event is one."""
    if isinstance(event, Received) and event.frame.type is FrameType.ACK:
        payload = _parsed(event.frame)
        return payload if isinstance(payload, Ack) else None
    return None


def _short(what: Any) -> str:
    match what:
        case Received(link, frame) | do.Send(link, frame):
            return f"{type(what).__name__} {link} epoch {frame.epoch} {_payload_text(frame)}"
        case do.Stream(link, frame, offset, size):
            return f"Stream {link} epoch {frame.epoch} [{offset}, {offset + size})"
        case do.Copy(offset, data, first):
            return f"Copy [{offset}, {offset + len(data)}) {first=}"
        case do.Publish(slots):
            return "Publish " + ", ".join(f"{slot.name}={value}" for slot, value in slots)
        case _:
            return f"{what}"


def _payload_text(frame: Frame) -> str:
    payload = _parsed(frame)
    if isinstance(payload, Append):
        payload = payload._replace(data=f"{len(payload.data)} bytes".encode())
    return f"{payload}"


def _parsed(frame: Frame) -> Payload | Frame:
    for version in reversed(_SPOKEN):
        with contextlib.suppress(BadFrame):
            return parse(frame, version)
    return frame
