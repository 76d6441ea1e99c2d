"""Speed at which an empty slave copies a master's log, and its effect on light senders."""

from __future__ import annotations

import time
from typing import Final, NamedTuple

from bench.group import Group
from bench.latency import percentiles
from bench.load import Shape, send
from bench.servers import Node, settle, wait_until
from bench.steady import Steady
from tidemark.formats.checkpoint import Slot

FILL_BODY: Final = 16 << 10
FILL_MESSAGES: Final = 64
LIGHT_RATE: Final = 200
"""Single messages per second."""
LIGHT_CONNECTIONS: Final = 8
BODY_SIZE: Final = 256
JOIN_TIMEOUT_S: Final = 300.0
FIRST_BYTE_S: Final = 0.002


class Joined(NamedTuple):
    """Result of one empty slave that joined."""

    began: float
    """When its first byte was on its disk, on the clock of ``time.perf_counter``."""
    ended: float
    """When it had the log that the master had at the start."""
    size: int
    """Size of that log in bytes."""
    cpu_s: float
    """CPU time of ha on both nodes during the copy."""

    @property
    def rate(self) -> float:
        return self.size / (self.ended - self.began) / 1e6

    @property
    def cpu_ms_per_mb(self) -> float:
        """CPU time of both ha processes [ms / MB]."""
        return self.cpu_s * 1e9 / self.size


class Observed(NamedTuple):
    """Latency of light senders in milliseconds."""

    before: float
    """99th percentile without a slave."""
    during: float
    """99th percentile while a slave copied."""
    sends: int
    """Number of sends during the copy."""
    joined: Joined

    @property
    def ratio(self) -> float:
        return self.during / self.before


def fill(node: Node, topic: str, size: int) -> None:
    """Send until the log has grown by size bytes, and queues and index are on disk."""
    shape = Shape(FILL_MESSAGES, FILL_BODY, "memory", "none")
    end = node.position(Slot.WRITTEN) + size
    while node.position(Slot.WRITTEN) < end:
        send(node.address, [(topic, None)], shape, connections=4, requests=64)
    node.wait_synced()


def join(group: Group) -> Joined:
    """Start the stopped slave without data; return once it is in sync."""
    group.empty_slave()
    settle()
    size = group.master.position(Slot.WRITTEN)
    group.slave.start()
    _wait_copied(group, 1, "the first byte")
    began, cpu_s = time.perf_counter(), _cpu_s(group)
    _wait_copied(group, size, "a copy of the log")
    joined = Joined(began, time.perf_counter(), size, _cpu_s(group) - cpu_s)
    group.wait_in_sync()
    return joined


def observe(group: Group, topic: str, seconds: float) -> Observed:
    """Send lightly without a slave, then while one joins; stop the slave at the end."""
    settle()
    shape = Shape(1, BODY_SIZE, "disk", "given")
    with Steady(
        group.master.address, topic, shape, per_second=LIGHT_RATE, connections=LIGHT_CONNECTIONS
    ) as load:
        began = time.perf_counter()
        time.sleep(seconds)
        ended = time.perf_counter()
        joined = join(group)
    group.end_slave()
    during = [each.took_s for each in load.between(joined.began, joined.ended)]
    before = percentiles([each.took_s for each in load.between(began, ended)]).p99
    return Observed(before, percentiles(during).p99, len(during), joined)


def _wait_copied(group: Group, size: int, what: str) -> None:
    """Wait until the slave has that many bytes on disk."""
    slave = group.slave
    wait_until(lambda: slave.position(Slot.FLUSHED) >= size, what, JOIN_TIMEOUT_S, FIRST_BYTE_S)


def _cpu_s(group: Group) -> float:
    return sum(node.processes["ha"].cpu_s() for node in (group.master, group.slave))
