"""Chooses the node of a group to which the next call goes. Pure.

A client starts with the addresses that it was given and learns the other nodes and the master from
their answers. If no master is known, or the known one does not answer, the addresses are tried in
turn while ``master_discovery`` queries all nodes. A node is accepted as the master only if it
itself claims to be, in an epoch that is not below the last accepted one: a node that was stopped
for a while still claims to be the master. Used by ``connection``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from yarl import URL

NODES_MAX: Final = 32
"""Maximum number of addresses kept, so that the list stays bounded."""


def base_of(url: str) -> str:
    """Return scheme, host and port of a broker. Raises ValueError."""
    base = URL(url)
    if base.scheme not in ("http", "https") or not base.host:
        raise ValueError(f"not a broker's URL: {url!r}; expected e.g. http://localhost:8080")
    return str(base).rstrip("/")


class View(NamedTuple):
    """What a node answers about its group."""

    urls: Sequence[str]
    """Addresses of all nodes; empty if the node is in no group or does not know them now."""
    epoch: int
    """Epoch of the master; 0 if none is known."""
    master: str | None
    """Address of the master; None if there is none or it is not known."""
    is_alone: bool
    """Whether the node is in no group, so that there are no other nodes to query."""


def read_view(answer: Mapping[str, Any]) -> View:
    """Parse the answer to ``GET /v1/cluster``. Raises ValueError, TypeError, KeyError."""
    urls: dict[str, str] = {}
    for each in answer["nodes"]:
        if each.get("api") is not None:
            urls[str(each.get("node"))] = base_of(each["api"])
    epoch, master = answer.get("epoch"), answer.get("master")
    return View(
        list(urls.values()),
        epoch if isinstance(epoch, int) else 0,
        urls.get(master) if isinstance(master, str) else None,
        is_alone=not answer["nodes"],
    )


class Nodes:
    """The addresses of a group and the current target of calls."""

    def __init__(self, urls: Sequence[str]) -> None:
        """urls: the given addresses, at least one; tried in this order."""
        self._given = list(dict.fromkeys(urls))
        self._urls = list(self._given)
        self.current = self._urls[0]
        """Address to which calls go."""
        self.master: str | None = None
        """Address of the accepted master; None if no node has claimed it or it failed since."""
        self._epoch = 0
        """Epoch of the last accepted master."""
        self._reported_epoch = 0
        """Highest epoch of a master that a name service has reported."""
        self._named: str | None = None
        """Address that a node last named as the master."""
        self._reader: str | None = None

    @property
    def urls(self) -> Sequence[str]:
        """All known addresses."""
        return tuple(self._urls)

    def failed(self, url: str) -> None:
        """Move on to the next node, because the node at url did not answer or cannot serve.

        Does nothing if another call has already moved on.
        """
        if url == self.master:
            self.master = None
        if url == self.current:
            self.current = self._after(url)

    def _after(self, url: str) -> str:
        at = self._urls.index(url) if url in self._urls else -1
        return self._urls[(at + 1) % len(self._urls)]

    def redirected(self, url: str, master: str | None) -> bool:
        """Note that the node at url is not the master. Returns whether another can be asked at
        once.

        master: the address that the node named; None if it knows none: then the next node is tried
        after a pause.
        """
        if master is None or master == url:
            self.failed(url)
            return False
        if url == self.master:
            self.master = None
        if master not in self._urls:
            self._urls = [*self._urls[: NODES_MAX - 1], master]
        if self.current in (url, master):
            self.current = master
        return True

    def learned(self, urls: Sequence[str]) -> None:
        """Replace the nodes of the group; the given addresses are kept as a fallback."""
        self._urls = list(dict.fromkeys([*urls, *self._given]))[:NODES_MAX]

    def reported(self, master: str, epoch: int) -> bool:
        """Note the master of an epoch, by the report of a name service. Returns whether it is new:
        then calls go there, although only its own answer makes it the accepted master."""
        if epoch <= max(self._epoch, self._reported_epoch) or master not in self._urls:
            return False
        self._reported_epoch = epoch
        if self.master != master:
            self.master = None
        self.current = master
        return True

    def record_view(self, url: str, view: View) -> bool:
        """Record a node's view. Returns whether the node is accepted as the master."""
        if view.urls:
            self.learned(view.urls)
        self._named = view.master or self._named
        if view.master != url or view.epoch < self._epoch:
            return False
        self._epoch = view.epoch
        self.master = self.current = url
        return True

    @property
    def reader(self) -> str:
        """Address for a plain read that any node may answer.

        It is one of the given addresses, if possible not the master's. It stays the same while the
        node answers, because another node may be behind it.
        """
        if self._reader is not None:
            return self._reader
        slave = next((url for url in self._given if url != self._named), self._given[0])
        if self._named is not None:
            self._reader = slave
        return slave

    def reader_failed(self, url: str) -> None:
        """Move plain reads on to the next node, because the node at url did not answer."""
        if url == self.reader:
            # The given addresses come first, whatever the group reports, then all known ones.
            urls = list(dict.fromkeys([*self._given, *self._urls]))
            self._reader = urls[(urls.index(url) + 1) % len(urls)]
