"""Logs, a master's and a slave's side of a link, and the frames between them, without I/O.

A log is a sequence of records of 1 to 40 bytes whose content is random: two logs have the same
bytes only because they were copied. ``Pair.run`` carries frames both ways until nothing moves.
"""

from __future__ import annotations

import itertools
import zlib
from random import Random
from typing import Final

from services.ha.core.divergence import CRC_WINDOW
from services.ha.core.effects import Close, Copy, Effect, PersistTable, Send, Stream
from services.ha.core.master_protocol import MasterLink, MasterLog
from services.ha.core.slave_protocol import SlaveLink, SlaveLog
from services.ha.core.truncation import CutPlan, HaltPlan, InOrder, LogsDiffer, Outcome, ResyncPlan
from services.ha.lease.value import Member
from services.ha.wire import payloads
from services.ha.wire.frames import Frame
from services.ha.wire.payloads import Ack, Append, Hello, HelloOk, ResyncRequired
from services.ha.wire.versions import SPOKEN
from shared.cluster.time_rules import LOCAL
from tidemark.formats.epochs import EpochStart
from tidemark.offsets import Epoch, PhysicalOffset

FILE_SIZE: Final = 1 << 20
MASTER: Final = Member("n0", "00" * 16)
SLAVE: Final = Member("n1", "11" * 16)


def entry(epoch: int, start: int) -> EpochStart:
    """An entry of an epoch table."""
    return EpochStart(Epoch(epoch), PhysicalOffset(start))


class Log:
    """Bytes, where records end, and the epoch table."""

    def __init__(self) -> None:
        self.first_offset = 0
        self.data = bytearray()
        self.borders = [0]
        self.table: tuple[EpochStart, ...] = ()
        self.confirm = 0

    @property
    def end(self) -> int:
        """End of the last whole record."""
        return self.first_offset + len(self.data)

    def begin_term(self, epoch: int) -> None:
        """Add a table entry as a new master does; it replaces one whose term wrote nothing."""
        kept = self.table
        if kept and kept[-1].start == self.end:
            kept = kept[:-1]
        self.table = (*kept, entry(epoch, self.end))

    def write(self, rng: Random, records: int) -> None:
        """Append records that no other log has."""
        for _ in range(records):
            self.data += rng.randbytes(rng.randint(1, 40))
            self.borders.append(self.end)

    def read(self, offset: int, size: int) -> bytes:
        """Bytes of the log."""
        at = offset - self.first_offset
        return bytes(self.data[at : at + size])

    def crc_before(self, end: int, size: int) -> int | None:
        """As ``CrcBefore``."""
        if size > CRC_WINDOW or end - size < self.first_offset or end > self.end:
            return None
        return zlib.crc32(self.read(end - size, size))

    def cut(self, plan: CutPlan) -> None:
        """Cut as the cutter does."""
        assert plan.point in self.borders
        assert plan.point >= self.confirm
        del self.data[plan.point - self.first_offset :]
        self.borders = [border for border in self.borders if border <= plan.point]
        self.table = plan.table

    def resync(self, first_offset: int) -> None:
        """Empty the log, which then begins at first_offset."""
        self.first_offset, self.data, self.borders = first_offset, bytearray(), [first_offset]
        self.table, self.confirm = (), 0

    def expire(self, first_offset: int) -> None:
        """Drop what retention would: bytes before first_offset, and entries that end by then."""
        del self.data[: first_offset - self.first_offset]
        self.first_offset = first_offset
        self.borders = [border for border in self.borders if border >= first_offset]
        starts = [one.start for one in self.table[1:]] + [1 << 62]
        self.table = tuple(
            one for one, end in zip(self.table, starts, strict=True) if end > first_offset
        )

    def as_master(self) -> MasterLog:
        """What the link of a master knows about this log."""
        return MasterLog(self.table, self.first_offset, self.end, self.confirm)

    def as_slave(self) -> SlaveLog:
        """What a slave's link begins with."""
        return SlaveLog(
            group="g0",
            member=SLAVE,
            version=SPOKEN.highest,
            file_size=FILE_SIZE,
            promised=99,
            first_offset=self.first_offset,
            end=self.end,
            durable=self.end,
            confirm=self.confirm,
            table=self.table,
        )


class Pair:
    """One link between two logs. The slave's copier appends whole records only."""

    def __init__(self, master: Log, slave: Log, *, epoch: int, now_ms: int = 0) -> None:
        self.master, self.slave = master, slave
        self.now_ms = now_ms
        self.master_link = MasterLink(
            5,
            SLAVE,
            epoch=epoch,
            group="g0",
            version=SPOKEN.highest,
            file_size=FILE_SIZE,
            rules=LOCAL,
            now_ms=now_ms,
        )
        self.slave_link = SlaveLink(
            6,
            epoch=epoch,
            own=slave.as_slave(),
            new_token=itertools.count(1).__next__,
            rules=LOCAL,
            now_ms=now_ms,
        )
        self.outcome: Outcome | None = None
        self.closed: list[str] = []
        self.seen: list[Effect] = []
        self._half = bytearray()
        self._to_master: list[Frame] = []
        self._to_slave: list[Frame] = []

    def begin(self) -> None:
        """The slave says HELLO."""
        self._carry_out(self.slave_link.hello())

    def run(self, *, steps: int = 10_000) -> None:
        """Carry frames until none is under way; fewer if steps end before."""
        for _ in range(steps):
            if self._to_master:
                self._at_master(self._to_master.pop(0))
            elif self._to_slave:
                self._at_slave(self._to_slave.pop(0))
            else:
                return

    def stream(self, *, steps: int = 10_000) -> None:
        """The master sends what there is, and frames are carried."""
        self._carry_out(self.master_link.stream(self.master.as_master(), self.now_ms))
        self.run(steps=steps)

    def settle(self) -> None:
        """Stream until the slave has everything, then let time pass for a heartbeat."""
        before = -1
        while self.slave_link.received != before and not self.closed:
            before = self.slave_link.received
            self.stream()
        self.now_ms += LOCAL.heartbeat_ms
        self.stream()

    def _at_master(self, frame: Frame) -> None:
        said = payloads.parse(frame)
        own = self.master.as_master()
        if isinstance(said, Hello):
            crc = self.master.crc_before
            self._carry_out(self.master_link.hello(said, own, crc, self.now_ms))
        else:
            assert isinstance(said, Ack)
            self._carry_out(self.master_link.ack(said, own, self.now_ms))

    def _at_slave(self, frame: Frame) -> None:
        said = payloads.parse(frame)
        outcome: Outcome | None = None
        effects: list[Effect]
        if isinstance(said, HelloOk):
            crc = self.slave.crc_before
            outcome, effects = self.slave_link.hello_ok(said, crc, self.now_ms)
        elif isinstance(said, ResyncRequired):
            outcome, effects = self.slave_link.resync_required(said, self.now_ms)
        else:
            assert isinstance(said, Append)
            effects = self.slave_link.append(said, self.now_ms)
        self.outcome = outcome or self.outcome
        self._carry_out(effects)

    def _carry_out(self, effects: list[Effect]) -> None:
        for effect in effects:
            self.seen.append(effect)
            if isinstance(effect, Send):
                queue = self._to_slave if effect.link == 5 else self._to_master
                queue.append(effect.frame)
            elif isinstance(effect, Stream):
                data = self.master.read(effect.offset, effect.size)
                assert len(data) == effect.size
                whole = effect.frame._replace(payload=bytes(effect.frame.payload) + data)
                self._to_slave.append(whole)
            elif isinstance(effect, PersistTable):
                self.slave.table = effect.entries
                self._carry_out(self.slave_link.table_persisted(effect.token))
            elif isinstance(effect, Copy):
                self._copy(effect)
            elif isinstance(effect, Close):
                self.closed.append(effect.reason)

    def _copy(self, copy: Copy) -> None:
        """Append the whole records among the bytes; the master's borders say where they end."""
        if copy.first:
            self._half.clear()
        assert copy.offset == self.slave.end + len(self._half)
        self._half += copy.data
        end = self.slave.end
        whole = [b for b in self.master.borders if end < b <= end + len(self._half)]
        if whole:
            size = whole[-1] - end
            self.slave.data += self._half[:size]
            self.slave.borders += whole
            del self._half[:size]
        end = self.slave.end
        self._carry_out(self.slave_link.copied(end, end))


def rejoin(master: Log, slave: Log, *, epoch: int, links: int = 10) -> list[Outcome]:
    """Open links until the slave is in order, as ha does; return what each of them led to."""
    outcomes: list[Outcome] = []
    for _ in range(links):
        pair = Pair(master, slave, epoch=epoch)
        pair.begin()
        pair.run()
        assert pair.outcome is not None, pair.closed
        outcomes.append(pair.outcome)
        match pair.outcome:
            case CutPlan():
                slave.cut(pair.outcome)
            case ResyncPlan(first_offset=first_offset):
                slave.resync(first_offset)
            case HaltPlan() | LogsDiffer():
                return outcomes
            case InOrder():
                pair.settle()
                assert not pair.closed, pair.closed
                return outcomes
    raise AssertionError(f"not in order after {links} links: {outcomes}")
