"""Load at a fixed rate: requests that are due at even times, over several connections.

    with Steady(node.address, TOPIC, shape, per_second=200, connections=8) as load:
        ...
    load.sent

A request is sent when it is due, whether or not those on other connections are answered. The time
of a request that is sent late because its own connection was waiting counts from when it was due.
So a stall delays all requests that are due during it. There are plain sockets and one thread per
connection, which sleeps or waits for the socket nearly always. An answer has arrived when the
kernel has its last bytes. If all cores are busy, the waiting thread may get a core some
milliseconds later, which is due to this machine and not to the server (``read_s`` includes it).
"""

from __future__ import annotations

import socket
import struct
import threading
import time
from typing import Final, NamedTuple, Self

from bench.exchange import LoadFailed
from bench.latency import READ_SIZE, HttpSocket
from bench.load import Shape, Template

JOIN_S: Final = 60.0
SO_TIMESTAMPNS: Final = 35
"""Linux socket option: messages include the time at which the kernel received them (socket(7))."""
_TIMESPEC: Final = struct.Struct("@ll")


class Sent(NamedTuple):
    at: float
    """When it was due or sent, on the clock of ``time.perf_counter``."""
    took_s: float
    """Time until its answer arrived."""
    read_s: float
    """Time until the waiting thread had read the answer."""


class ArrivalSocket(HttpSocket):
    """A socket that records when the last bytes arrived."""

    def __init__(self, address: tuple[str, int]) -> None:
        super().__init__(address)
        self.socket.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        self.arrived = 0.0
        """On the clock of ``time.perf_counter``."""

    def _read(self) -> bytes:
        data, ancillary, _, _ = self.socket.recvmsg(READ_SIZE, socket.CMSG_SPACE(_TIMESPEC.size))
        self.arrived = time.perf_counter()  # the latest possible time: a stamp may be missing
        for level, kind, stamp in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, SO_TIMESTAMPNS):
                seconds, nanoseconds = _TIMESPEC.unpack(stamp)
                ago_s = time.time() - (seconds + nanoseconds / 1e9)
                if not 0 <= ago_s < JOIN_S:
                    raise LoadFailed(f"the wall clock was set: bytes came {ago_s:g} s ago")
                self.arrived -= ago_s
        return data


class Steady:
    """Sends during the ``with`` block. Its end raises LoadFailed if a request was rejected."""

    def __init__(
        self,
        address: tuple[str, int],
        topic: str,
        shape: Shape,
        *,
        per_second: float,
        connections: int,
    ) -> None:
        """per_second: number of requests over all connections."""
        self._address, self._topic, self._shape = address, topic, shape
        self._connections, self._period_s = connections, connections / per_second
        self._ending = threading.Event()
        self._failures: list[Exception] = []
        self._began = self._ended = 0.0
        self._threads: list[threading.Thread] = []
        self._sent: list[list[Sent]] = [[] for _ in range(connections)]

    def __enter__(self) -> Self:
        self._began = time.perf_counter()
        self._threads = [
            threading.Thread(target=self._run, args=(number,), daemon=True)
            for number in range(self._connections)
        ]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, _: object, error: BaseException | None, _trace: object) -> None:
        self._ending.set()
        for thread in self._threads:
            thread.join(JOIN_S)
        self._ended = time.perf_counter()
        if self._failures and error is None:
            raise self._failures[0]

    @property
    def sent(self) -> list[Sent]:
        """Answered requests, sorted by time."""
        return sorted(sent for each in self._sent for sent in each)

    def between(self, began: float, ended: float) -> list[Sent]:
        """Requests that were due in a period."""
        return [sent for sent in self.sent if began <= sent.at < ended]

    @property
    def rate(self) -> float:
        """Answered messages per second, after the end."""
        count = sum(len(each) for each in self._sent) * self._shape.messages
        return count / (self._ended - self._began)

    def _run(self, number: int) -> None:
        try:
            self._send_all(number)
        except (OSError, LoadFailed) as error:
            self._failures.append(error)

    def _send_all(self, number: int) -> None:
        host = "{}:{}".format(*self._address)
        template = Template(self._shape, host, [(self._topic, None)])
        connection = ArrivalSocket(self._address)
        due = self._began + self._period_s * number / self._connections
        free = due
        """When the previous answer was complete."""
        try:
            while not self._ending.wait(max(0.0, due - time.perf_counter())):
                request = bytes(template.next(0))
                now = time.perf_counter()
                # A free thread that is late was delayed by this machine, not by the server.
                at = due if free > due else now
                connection.exchange(request)
                free = connection.arrived
                self._sent[number].append(Sent(at, free - at, time.perf_counter() - at))
                due += self._period_s
        finally:
            connection.socket.close()
