"""Which node of a group is asked next. Pure.

A client begins with the addresses that it was given. The nodes tell it the others, and who is
master; where none is known, or the known one does not answer, the addresses are tried in turn,
while ``lookout`` asks them all who it is. A node is believed to be the master when it says so
itself and in no epoch below one that was believed before: one that was stopped for a while still
thinks that it is. Used by ``connection``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from yarl import URL

NODES_MAX: Final = 32
"""Addresses kept; more would only be those of other groups."""


def base_of(url: str) -> str:
    """Scheme, host and port of a broker. Raises ValueError."""
    base = URL(url)
    if base.scheme not in ("http", "https") or not base.host:
        raise ValueError(f"not a broker's URL: {url!r}; it looks like http://localhost:8080")
    return str(base).rstrip("/")


class View(NamedTuple):
    """What a node tells of its group."""

    urls: Sequence[str]
    """Of all nodes; empty where it is in no group, or does not know them now."""
    epoch: int
    """0: none is known."""
    master: str | None
    """The master's address; None: there is none, or it is not known."""
    is_alone: bool
    """The node is in no group: there is nobody else to ask, ever."""


def read_view(answer: Mapping[str, Any]) -> View:
    """Read the answer to ``GET /v1/cluster``. Raises ValueError, TypeError, KeyError."""
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
    """The addresses of a group, and the one to ask now."""

    def __init__(self, urls: Sequence[str]) -> None:
        """urls: as given, at least one; asked in this order."""
        self._given = list(dict.fromkeys(urls))
        self._urls = list(self._given)
        self.current = self._urls[0]
        """Whom to ask."""
        self.master: str | None = None
        """Who is believed to be the master; None: nobody has said it, or it has failed since."""
        self._epoch = 0
        """Of the last master that was believed."""
        self._named: str | None = None
        """Whom a node called the master last."""
        self._reader: str | None = None

    @property
    def urls(self) -> Sequence[str]:
        """All that are known."""
        return tuple(self._urls)

    def failed(self, url: str) -> None:
        """The node at url did not answer, or cannot serve: the next one's turn.

        Nothing happens if another call has moved on already.
        """
        if url == self.master:
            self.master = None
        if url == self.current:
            self.current = self._after(url)

    def _after(self, url: str) -> str:
        at = self._urls.index(url) if url in self._urls else -1
        return self._urls[(at + 1) % len(self._urls)]

    def sent_on(self, url: str, master: str | None) -> bool:
        """The node at url is not the master; tell whether there is somebody else to ask at once.

        master: whom it named; None: it knows of none, and the next one's turn it is, later.
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
        """These are the group's nodes; what was given stays, in case they are all unreachable."""
        self._urls = list(dict.fromkeys([*urls, *self._given]))[:NODES_MAX]

    def heard(self, url: str, view: View) -> bool:
        """The node at url told what it knows; whether it is the master, and believed."""
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
        """Whom to ask for a plain read that any node may answer.

        One of the given ones, if it can be one that is not the master; the same as long as it
        answers: another may be behind it.
        """
        if self._reader is not None:
            return self._reader
        slave = next((url for url in self._given if url != self._named), self._given[0])
        if self._named is not None:
            self._reader = slave
        return slave

    def reader_failed(self, url: str) -> None:
        """The node at url did not answer a plain read: the next one's turn."""
        if url == self.reader:
            # The given ones first, whatever the group calls them, then all.
            urls = list(dict.fromkeys([*self._given, *self._urls]))
            self._reader = urls[(urls.index(url) + 1) % len(urls)]
