"""Trials of connections: they fall silent, come from strangers, or break again and again."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from services.ha.wire.frames import Frame, FrameType, encode
from tests.simulation.replication.connections import CONNECTIONS_MAX, PROOF_TIMEOUT_S
from tests.simulation.replication.machine import Machine
from tests.simulation.replication.network import CLOSED_US, Stranger
from tests.simulation.replication.plan import TIMES
from tests.simulation.replication.trying import QUIET_MS, Trying
from tests.simulation.replication.violation import Violation

if TYPE_CHECKING:
    from tests.simulation.replication.world import World

SILENT_MS: Final = 2 * TIMES.link_dead_ms + CLOSED_US // 1000 + 300
"""A connection to a silent peer is found dead, closed, and has ended after this time."""
PROOF_MS: Final = int(PROOF_TIMEOUT_S * 1000) + 200
"""A stranger is disconnected after this time."""
REFUSED_MS: Final = 100
"""A stranger that sends something wrong is disconnected after this time."""
RELINKED_MS: Final = 1_500
SLOW_US: Final = 2_000_000
BREAKS: Final = 4
BROKEN_MS: Final = 150, 400
"""A slave connects again within this time, and its log is not settled yet."""
WRONG: Final = (
    encode(Frame(FrameType.WELCOME, 0, b"")),
    encode(Frame(FrameType.ANSWER, 0, bytes(200))),
    encode(Frame(FrameType.STATUS, 0, bytes(8))),
    encode(Frame(FrameType.ANSWER, 0, bytes(4_000)))[:100],
    b"GET / HTTP/1.1\r\nHost: n0\r\n\r\n",
)
"""Bytes that a peer with the secret does not send first."""


class ConnectingTrials(Trying):
    """Trials of one world."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.trials: tuple[Callable[[], None], ...] = (
            *(self._fall_silent, self._knock, self._break_while_settling),
        )

    def _fall_silent(self) -> None:
        """A node becomes unreachable while bytes for it wait in the others. The connections end,
        and it is connected to soon after it is back."""
        group, silent = self._group, self._any_machine()
        network, others = group.network, [name for name in group.machines if name != silent.name]
        is_off = self._random.random() < 0.5
        if is_off:
            group.cut_power(silent)
        for other in others:
            network.cut(silent.name, other)
            network.cut(other, silent.name)
        self._wait(SILENT_MS)
        for other in others:
            if network.made_count(other, silent.name):
                raise Violation(
                    f"{silent.name} does not answer for {SILENT_MS} ms, and {other} keeps its "
                    "connection"
                )
        network.heal()
        if is_off:
            group.boot(silent)
            self._must_be_whole_again(f"{silent.name} was without power")
        self._must_be_linked(RELINKED_MS)
        self._must_be_whole_again(f"{silent.name} did not answer")
        ends = {name: network.ends_count(name) for name in group.machines}
        if set(ends.values()) != {2 * len(others)}:
            raise Violation(f"{silent.name} did not answer; since then nodes have {ends} ends")

    def _knock(self) -> None:
        """Strangers connect, and send nothing or something wrong. They are disconnected in time,
        and keep no node out."""
        network, machine = self._group.network, self._any_machine()
        wrong = self._random.choice(WRONG)
        stranger = Stranger()
        silent = [network.knock(stranger, machine.name, b"") for _ in range(CONNECTIONS_MAX + 2)]
        rude = network.knock(stranger, machine.name, wrong)
        if not self._until(lambda: rude.is_refused, REFUSED_MS + TIMES.request_timeout_ms):
            raise Violation(f"{machine.name} listens to a stranger that sends {wrong[:40]!r}")
        other = self._any_but(machine)
        network.break_links(machine.name, other.name)
        self._must_be_linked(PROOF_MS)
        self._wait(PROOF_MS)
        if open_count := sum(not each.is_refused for each in silent):
            raise Violation(
                f"{machine.name} keeps {open_count} connections of strangers for {PROOF_MS} ms"
            )
        for each in (*silent, rude):
            network.closed(each)
        self._must_be_whole_again(f"strangers connected to {machine.name}")

    def _break_while_settling(self) -> None:
        """The connections of a slave whose syncs take long break again and again while it prepares
        to follow. It follows once they last."""
        master = self._master()
        slave = self._any_but(master)
        usual, slave.disk_us = slave.disk_us, SLOW_US
        self._wait(QUIET_MS // 2)
        for _ in range(BREAKS):
            self._group.network.break_links(master.name, slave.name)
            self._wait(self._random.randint(*BROKEN_MS))
        slave.disk_us = usual
        self._wait(SLOW_US // 1000)  # Wait for the syncs that have begun.
        self._must_be_whole_again(f"the connections of {slave.name} broke {BREAKS} times")

    def _must_be_linked(self, within_ms: int) -> None:
        """Check that every node is connected to every other one soon."""

        def missing() -> list[tuple[str, str]]:
            return [
                (one.name, other.name)
                for one in self._group.machines.values()
                for other in self._group.machines.values()
                if one is not other and not self._is_linked(one, other)
            ]

        if not self._until(lambda: not missing(), within_ms):
            raise Violation(
                f"in {within_ms} ms nodes that reach each other connect, but {missing()}"
            )

    def _is_linked(self, one: Machine, other: Machine) -> bool:
        return self._replica(self._ha(one)).peers.by_node[other.name].link is not None
