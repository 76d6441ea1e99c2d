"""Limits how soon a start of ha repeats an action: failed attempts are repeated, but not at once.

A wrong pause breaks no promise. It causes a storm of frames, or of writes to a full disk, which
slows everything else on real machines.
"""

from __future__ import annotations

from typing import Final

from services.ha.core import effects as do
from services.ha.core.effects import Effect, LeasePut
from services.ha.core.events import Event, Failed
from services.ha.lease.value import Member
from tests.simulation.replication.violation import Violation

HEARTBEATS_APART_MS: Final = 50
"""Half of the interval in the plan."""
GROWTHS_APART_MS: Final = 500
"""Half of the pause after a member could not be added."""
TRIED_WITHIN_MS: Final = 3_000
TRIES_MAX: Final = 10
"""Pauses of 100, 200, 400, 800 and then 1000 ms are seven attempts, and a command may restart the
sequence once."""
ASKED_MAX: Final = 8
"""Links that faults may end before the answer to HELLO."""
FENCES_MAX: Final = 2
"""By a switch, and by what ends its term before the switch is over."""
WRITES_APART_MS: Final = 500
"""A quarter of the pause after a promise found no room."""


class Repeats:
    """The repeated actions of one start of ha."""

    def __init__(self, node: str) -> None:
        self._node = node
        self._sent: dict[int, tuple[int, int]] = {}
        """By link: the confirm offset of the last frame of a master, and when it was sent."""
        self._hellos: dict[tuple[int, int], tuple[int, int]] = {}
        """By link and epoch: number of epochs and end in the last HELLO."""
        self._added: dict[tuple[int, Member], tuple[str, int]] = {}
        """By epoch and added member: version of the lease, and when the addition was requested."""
        self._asked: tuple[int, int, int] | None = None
        """Epoch, and the log described in the last HELLO that began a link."""
        self._asked_count = 0
        """Links that began with that HELLO and on which the logs were not found to agree."""
        self._tried: dict[str, tuple[int, list[int]]] = {}
        """By node: epoch, and times of the failed attempts to connect."""
        self._fences = 0
        """Number since the last grant or the last campaign."""
        self.promise: int | None = None
        """Token of the last promise that was written."""
        self._failed_ms: int | None = None
        """When a promise last could not be written."""

    def happened(self, event: Event, now_ms: int) -> None:
        """Note the outcome of an effect."""
        if isinstance(event, Failed) and event.token == self.promise:
            self._failed_ms = now_ms

    def sends(self, link: int, confirm: int, now_ms: int, *, empty: bool) -> None:
        """Check a frame of a master. empty: a heartbeat, or a frame that only carries a new confirm
        offset."""
        before, sent_ms = self._sent.get(link, (-1, 0))
        if empty and before == confirm and now_ms - sent_ms < HEARTBEATS_APART_MS:
            raise Violation(
                f"{self._node} sends an empty frame on link {link} "
                f"{now_ms - sent_ms} ms after another one"
            )
        self._sent[link] = confirm, now_ms

    def sends_hello(self, link: int, epoch: int, epochs_count: int, end: int) -> None:
        """Check that a slave repeats HELLO only with a shorter log."""
        before = self._hellos.get((link, epoch))
        if before is not None and epochs_count >= before[0] and end >= before[1]:
            raise Violation(f"{self._node} sends HELLO twice on link {link} in epoch {epoch}")
        self._hellos[link, epoch] = epochs_count, end
        if before is None:
            asked = epoch, epochs_count, end
            self._asked_count = self._asked_count + 1 if asked == self._asked else 1
            self._asked = asked

    def checks_links(self, *, in_order: bool, is_damaged: bool) -> None:
        """Check that a slave does not ask the same again and again. in_order: its log is found to
        be the beginning of its master's. is_damaged: it waits until the damaged log is known."""
        if in_order or is_damaged:
            self._asked_count = 0
        if self._asked_count > ASKED_MAX:
            raise Violation(
                f"{self._node} has begun {self._asked_count} links with the same log: (epoch, "
                f"epochs in its table, end) are {self._asked}"
            )

    def connects(self, node: str, epoch: int, now_ms: int) -> None:
        """Check that connections are tried after increasing pauses. In another epoch a node may be
        tried at once, since it may be the new master."""
        known_epoch, tried = self._tried.get(node, (epoch, []))
        since = [at_ms for at_ms in tried if now_ms - at_ms < TRIED_WITHIN_MS]
        since = [*since, now_ms] if known_epoch == epoch else [now_ms]
        self._tried[node] = epoch, since
        if len(since) > TRIES_MAX:
            raise Violation(
                f"{self._node} connects to {node} {len(since)} times in {TRIED_WITHIN_MS} ms"
            )

    def connected(self, node: str) -> None:
        """Note that a connection exists."""
        self._tried.pop(node, None)

    def _writes_lease(self, put: LeasePut, now_ms: int) -> None:
        """Check that a master pauses between two requests for a member, except for repetitions of
        one write."""
        if put.lease.epoch != put.base.lease.epoch:
            self._fences = 0  # A term that ends before its first grant is fenced once more.
            return
        for member in sorted({*put.lease.in_sync} - {*put.base.lease.in_sync}):
            version, asked_ms = self._added.get((put.lease.epoch, member), ("", -GROWTHS_APART_MS))
            if version == put.base.version:
                continue  # The same write is repeated until its outcome is known.
            if now_ms - asked_ms < GROWTHS_APART_MS:
                raise Violation(
                    f"{self._node} requests {member.node} again {now_ms - asked_ms} ms after "
                    "that failed"
                )
            self._added[put.lease.epoch, member] = put.base.version, now_ms

    def does(self, effect: Effect, now_ms: int) -> None:
        """Check an effect before it is carried out."""
        match effect:
            case LeasePut():
                self._writes_lease(effect, now_ms)
            case do.Grant() | do.LeaseCreate():
                self._fences = 0
            case do.Close(reason=reason) if reason.startswith("nothing heard"):
                self._asked_count = 0  # The other node has no term, or is paused.
            case do.Fence():
                self._fences += 1
                if self._fences > FENCES_MAX:
                    raise Violation(f"{self._node} fences its broker {self._fences} times")
        if not isinstance(effect, do.PersistPromise):
            return
        self.promise = effect.token
        if self._failed_ms is not None and now_ms - self._failed_ms < WRITES_APART_MS:
            raise Violation(
                f"{self._node} writes its promise again {now_ms - self._failed_ms} ms after that "
                "has failed"
            )
