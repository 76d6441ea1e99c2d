"""A network namespace for each node of a drill, so that two nodes can be cut off from each other.

Every host is a network namespace with a veth pair to the namespace of this process, which routes
between the hosts and runs the producers and consumers. A cut is a routing rule that silently drops
the packets from one host to another, like a broken switch; each direction is one rule. The
namespaces have no names, so they end with the processes and need no cleanup. Requires the right to
create namespaces (root), and ``ip``.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple, Protocol, TypeVar

from shared.runtime.parent_death import kill_with_parent

CLONE_NEWNS: Final = 0x0002_0000
CLONE_NEWNET: Final = 0x4000_0000
MS_PRIVATE: Final = 0x4_0000
MS_REC: Final = 0x4000
LOOPBACK: Final = "127.0.0.1"
CLIENTS: Final = "clients"
"""Receiver of a cut that separates a host from producers and consumers."""
HOSTS_MAX: Final = 250
_LIBC: Final = ctypes.CDLL(None, use_errno=True)

T = TypeVar("T")


class NoNamespaces(Exception):
    """This process may not create namespaces, or ``ip`` is missing; the message states which."""


class Host(NamedTuple):
    """Where the processes of a node run, and their address."""

    name: str
    address: str
    enter: Callable[[], None] | None
    """Called in a child to enter the namespace of the host; None to stay in this namespace."""

    def before_exec(self) -> None:
        """Prepare a child that runs a service on this host: it ends with this process."""
        kill_with_parent()
        if self.enter is not None:
            self.enter()


class Network(Protocol):
    """Hosts and the connections between them."""

    def add(self, name: str) -> Host: ...

    def cut(self, sender: str, receiver: str, *ports: int) -> None:
        """Drop packets from one host to another; the other direction is unaffected.

        ports: drop only the TCP packets that are from or to one of these (default: all packets).
        """
        ...

    def heal(self) -> None: ...


class Loopback:
    """Network without namespaces: all hosts are this machine, and nothing can be cut."""

    def add(self, name: str) -> Host:
        return Host(name, LOOPBACK, None)

    def cut(self, sender: str, receiver: str, *ports: int) -> None:
        del ports
        raise NoNamespaces(
            f"cutting {sender} from {receiver} needs network namespaces: run the drills as root"
        )

    def heal(self) -> None:
        """Do nothing, because there are no cuts."""


class Namespaces:
    """One namespace per host; this process is the router.

    Create at most one per process, before its first thread: a thread stays in the namespaces in
    which it was created.
    """

    def __init__(self) -> None:
        """Create the namespaces of this process. Raises NoNamespaces."""
        # A mount namespace too, so that small file systems of drills end with this process.
        if _LIBC.unshare(CLONE_NEWNET | CLONE_NEWNS) != 0:
            raise NoNamespaces(
                f"namespaces cannot be made: {os.strerror(ctypes.get_errno())}. Run as root."
            )
        if _LIBC.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None) != 0:
            raise NoNamespaces(f"mounts stay shared: {os.strerror(ctypes.get_errno())}")
        self._descriptors: dict[str, int] = {}
        self._free = list(range(HOSTS_MAX - 1, -1, -1))
        self._hosts: dict[str, Host] = {}
        self._cuts: set[tuple[str, ...]] = set()
        """Sender, receiver and further selectors of each rule."""
        _ip("link", "set", "lo", "up")
        # The rules of cuts must precede the local table; otherwise packets for this machine bypass
        # them.
        _ip("rule", "add", "pref", "200", "lookup", "local")
        _ip("rule", "del", "pref", "0")
        Path("/proc/sys/net/ipv4/ip_forward").write_text("1", encoding="ascii")

    def add(self, name: str) -> Host:
        """Return a host with its own namespace, veth pair and address; the same host for the same
        name.
        """
        if name in self._hosts:
            return self._hosts[name]
        if not self._free:
            raise NoNamespaces(f"there are {HOSTS_MAX} hosts already")
        number = self._free.pop()
        descriptor = _new_namespace()
        self._descriptors[name] = descriptor
        far = f"10.213.{number}.2"
        near = _near(far)
        cable = f"drill{number}"
        place = f"/proc/{os.getpid()}/fd/{descriptor}"
        _ip("link", "add", cable, "type", "veth", "peer", "name", "eth0", "netns", place)
        _ip("addr", "add", f"{near}/24", "dev", cable)
        _ip("link", "set", cable, "up")
        entering = partial(enter, descriptor)
        _ip("link", "set", "lo", "up", enter=entering)
        _ip("addr", "add", f"{far}/24", "dev", "eth0", enter=entering)
        _ip("link", "set", "eth0", "up", enter=entering)
        _ip("route", "add", "default", "via", near, enter=entering)
        self._hosts[name] = Host(name, far, entering)
        return self._hosts[name]

    def add_here(self, name: str, address: str) -> Host:
        """Add a host in the namespace of this process, with its own address."""
        _ip("addr", "add", f"{address}/32", "dev", "lo")
        self._hosts[name] = Host(name, address, None)
        return self._hosts[name]

    def descriptor(self, name: str) -> int:
        """Return the descriptor of a host's namespace; ``remove`` closes it."""
        return self._descriptors[name]

    def remove(self, name: str) -> None:
        """Remove a host whose processes have ended.

        Its address is reused only if all others are taken.
        """
        for cut in [cut for cut in self._cuts if name in cut]:
            self._rule("del", *cut)
            self._cuts.discard(cut)
        host = self._hosts.pop(name)
        number = int(host.address.split(".")[2])
        # Delete the link explicitly: the kernel deletes it with the namespace, but a moment later.
        _ip("link", "del", f"drill{number}")
        os.close(self._descriptors.pop(name))
        self._free.insert(0, number)

    def cut(self, sender: str, receiver: str, *ports: int) -> None:
        chosen: list[tuple[str, ...]] = [
            ("ipproto", "tcp", end, str(port)) for port in ports for end in ("sport", "dport")
        ]
        for packets in chosen or [()]:
            cut = (sender, receiver, *packets)
            if cut not in self._cuts:
                self._rule("add", *cut)
                self._cuts.add(cut)

    def heal(self) -> None:
        for cut in self._cuts:
            self._rule("del", *cut)
        self._cuts.clear()

    def _rule(self, verb: str, sender: str, receiver: str, *packets: str) -> None:
        of = self._hosts[sender].address
        to = _near(of) if receiver == CLIENTS else self._hosts[receiver].address
        _ip("rule", verb, "from", of, "to", to, *packets, "blackhole", "pref", "100")


def _near(far: str) -> str:
    """Return this machine's address on the link to a host."""
    return far.removesuffix("2") + "1"


def cut_apart(
    network: Network, name: str, others: Iterable[str], ports: Iterable[int] = ()
) -> None:
    """Cut a host off from others, in both directions. ports: as for ``Network.cut``."""
    for other in others:
        network.cut(name, other, *ports)
        network.cut(other, name, *ports)


def _new_namespace() -> int:
    """Return a descriptor of a new network namespace.

    It is created in a temporary thread, so that this thread keeps its namespace.
    """

    def make() -> int:
        if _LIBC.unshare(CLONE_NEWNET) != 0:
            raise NoNamespaces("a network namespace cannot be made")
        return os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)

    return _in_thread(make)


def run_in(descriptor: int, make: Callable[[], T]) -> T:
    """Run a function in another network namespace, in a temporary thread. Raises OSError."""

    def enter_and_make() -> T:
        enter(descriptor)
        return make()

    return _in_thread(enter_and_make)


def enter(descriptor: int) -> None:
    """Move this thread to a network namespace. Raises OSError."""
    if _LIBC.setns(descriptor, CLONE_NEWNET) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"enter the network: {os.strerror(number)}")


def _in_thread(make: Callable[[], T]) -> T:
    with ThreadPoolExecutor(1) as threads:
        return threads.submit(make).result()


def _ip(*arguments: str, enter: Callable[[], None] | None = None) -> None:
    try:
        done = subprocess.run(
            ["ip", *arguments],
            capture_output=True,
            text=True,
            check=False,
            preexec_fn=enter,
            # The path of a namespace refers to a descriptor of this process, not of the child.
            close_fds=True,
        )
    except FileNotFoundError:
        raise NoNamespaces("`ip` is not installed: apt-get install iproute2") from None
    if done.returncode:
        raise NoNamespaces(f"ip {' '.join(arguments)}: {done.stderr.strip()}")
