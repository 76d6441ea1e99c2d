"""A network of its own for each node of a drill, in which two of them can be cut apart.

Every host is a network namespace with one virtual cable to this process's own namespace, which
routes between them and is where producers and consumers live. A cut is a routing rule that drops
what goes from one host to another without a word, as a broken switch does; each direction is one
rule. Nothing of it has a name, so nothing stays behind: the namespaces end with the processes.
Needs the right to make namespaces (root), and ``ip``.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final, NamedTuple, Protocol

CLONE_NEWNS: Final = 0x0002_0000
CLONE_NEWNET: Final = 0x4000_0000
MS_PRIVATE: Final = 0x4_0000
MS_REC: Final = 0x4000
LOOPBACK: Final = "127.0.0.1"
CLIENTS: Final = "clients"
"""As the receiver of a cut: producers and consumers hear nothing of that host any more."""
HOSTS_MAX: Final = 250
_LIBC: Final = ctypes.CDLL(None, use_errno=True)


class NoNamespaces(Exception):
    """This process may not make namespaces, or has no tool for it; the message says what."""


class Host(NamedTuple):
    """Where processes of a node run, and under which address they are reached."""

    name: str
    address: str
    enter: Callable[[], None] | None
    """Called in a child before it becomes the service; None: it stays where this process is."""


class Network(Protocol):
    """Hosts, and what can go between them."""

    def add(self, name: str) -> Host:
        """A new host that reaches all others."""
        ...

    def cut(self, sender: str, receiver: str) -> None:
        """Drop what one host sends to another; the other direction stays."""
        ...

    def heal(self) -> None:
        """Let everything through again."""
        ...


class Loopback:
    """No namespaces: all hosts are this machine, and nothing can be cut."""

    def add(self, name: str) -> Host:
        """The loopback address, under a name."""
        return Host(name, LOOPBACK, None)

    def cut(self, sender: str, receiver: str) -> None:
        """Raises NoNamespaces."""
        raise NoNamespaces(
            f"cutting {sender} from {receiver} needs network namespaces: run the drills as root"
        )

    def heal(self) -> None:
        """There is nothing to heal."""


class Namespaces:
    """One namespace per host; this process is the router.

    One per process, made before its first thread: a thread stays in the namespaces of its maker.
    """

    def __init__(self) -> None:
        """Raises NoNamespaces."""
        # Mounts as well: a small file system that a drill mounts goes away with us.
        if _LIBC.unshare(CLONE_NEWNET | CLONE_NEWNS) != 0:
            raise NoNamespaces(
                f"namespaces cannot be made: {os.strerror(ctypes.get_errno())}. Run as root."
            )
        if _LIBC.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None) != 0:
            raise NoNamespaces(f"mounts stay shared: {os.strerror(ctypes.get_errno())}")
        self._descriptors: dict[str, int] = {}
        self._free = list(range(HOSTS_MAX - 1, -1, -1))
        self._hosts: dict[str, Host] = {}
        self._cuts: set[tuple[str, str]] = set()
        _ip("link", "set", "lo", "up")
        # The rules of cuts come first: else what is meant for this machine would never meet them.
        _ip("rule", "add", "pref", "200", "lookup", "local")
        _ip("rule", "del", "pref", "0")
        Path("/proc/sys/net/ipv4/ip_forward").write_text("1", encoding="ascii")

    def add(self, name: str) -> Host:
        """A host with a namespace, a cable and an address of its own; the same for one name."""
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
        enter = _entering(descriptor)
        _ip("link", "set", "lo", "up", enter=enter)
        _ip("addr", "add", f"{far}/24", "dev", "eth0", enter=enter)
        _ip("link", "set", "eth0", "up", enter=enter)
        _ip("route", "add", "default", "via", near, enter=enter)
        self._hosts[name] = Host(name, far, enter)
        return self._hosts[name]

    def add_here(self, name: str, address: str) -> Host:
        """A host that is this process itself, under an address of its own."""
        _ip("addr", "add", f"{address}/32", "dev", "lo")
        self._hosts[name] = Host(name, address, None)
        return self._hosts[name]

    def descriptor(self, name: str) -> int:
        """Of a host's namespace; closed by ``remove``."""
        return self._descriptors[name]

    def remove(self, name: str) -> None:
        """Forget a host whose processes have ended; its address goes to nobody for as long as
        there are others.
        """
        for cut in [cut for cut in self._cuts if name in cut]:
            self._rule("del", *cut)
            self._cuts.discard(cut)
        host = self._hosts.pop(name)
        number = int(host.address.split(".")[2])
        # By hand: the kernel takes it away with the namespace, and that a moment later.
        _ip("link", "del", f"drill{number}")
        os.close(self._descriptors.pop(name))
        self._free.insert(0, number)

    def cut(self, sender: str, receiver: str) -> None:
        """Drop what sender sends to receiver from now on."""
        if (sender, receiver) not in self._cuts:
            self._rule("add", sender, receiver)
            self._cuts.add((sender, receiver))

    def heal(self) -> None:
        """Take all cuts back."""
        for sender, receiver in self._cuts:
            self._rule("del", sender, receiver)
        self._cuts.clear()

    def _rule(self, verb: str, sender: str, receiver: str) -> None:
        of = self._hosts[sender].address
        to = _near(of) if receiver == CLIENTS else self._hosts[receiver].address
        _ip("rule", verb, "from", of, "to", to, "blackhole", "pref", "100")


def _near(far: str) -> str:
    """This machine's address at the cable of a host."""
    return far.removesuffix("2") + "1"


def cut_apart(network: Network, name: str, others: Iterable[str]) -> None:
    """Cut a host off from others, both ways."""
    for other in others:
        network.cut(name, other)
        network.cut(other, name)


def _new_namespace() -> int:
    """A descriptor of a new network namespace, made in a thread that ends: this one stays."""
    found: list[int] = []

    def make() -> None:
        if _LIBC.unshare(CLONE_NEWNET) == 0:
            found.append(os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC))

    thread = threading.Thread(target=make)
    thread.start()
    thread.join()
    if not found:
        raise NoNamespaces("a network namespace cannot be made")
    return found[0]


def _entering(descriptor: int) -> Callable[[], None]:
    def enter() -> None:
        if _LIBC.setns(descriptor, CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), "setns")

    return enter


def _ip(*arguments: str, enter: Callable[[], None] | None = None) -> None:
    try:
        done = subprocess.run(
            ["ip", *arguments],
            capture_output=True,
            text=True,
            check=False,
            preexec_fn=enter,
            # The path of a namespace goes through our descriptors, not the child's.
            close_fds=True,
        )
    except FileNotFoundError:
        raise NoNamespaces("`ip` is not installed: apt-get install iproute2") from None
    if done.returncode:
        raise NoNamespaces(f"ip {' '.join(arguments)}: {done.stderr.strip()}")
