"""Which node of a group is asked next. Pure.

A client begins with the addresses that it was given. The nodes tell it the others, and who is
master; where none is known, or the known one does not answer, the addresses are tried in turn.
Used by ``connection``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

NODES_MAX: Final = 32
"""Addresses kept; more would only be those of other groups."""


class Nodes:
    """The addresses of a group, and the one to ask now."""

    def __init__(self, urls: Sequence[str]) -> None:
        """urls: as given, at least one; asked in this order."""
        self._given = list(dict.fromkeys(urls))
        self._urls = list(self._given)
        self.current = self._urls[0]
        """Whom to ask."""

    @property
    def urls(self) -> Sequence[str]:
        """All that are known."""
        return tuple(self._urls)

    def failed(self, url: str) -> None:
        """The node at url did not answer, or cannot serve: the next one's turn.

        Nothing happens if another call has moved on already.
        """
        if url == self.current:
            at = self._urls.index(url) if url in self._urls else -1
            self.current = self._urls[(at + 1) % len(self._urls)]

    def sent_on(self, url: str, master: str | None) -> bool:
        """The node at url is not the master; tell whether there is somebody else to ask at once.

        master: whom it named; None: it knows of none, and the next one's turn it is, later.
        """
        if master is None or master == url:
            self.failed(url)
            return False
        if master not in self._urls:
            self._urls = [*self._urls[: NODES_MAX - 1], master]
        if self.current in (url, master):
            self.current = master
        return True

    def learned(self, urls: Sequence[str]) -> None:
        """These are the group's nodes; what was given stays, in case they are all unreachable."""
        self._urls = list(dict.fromkeys([*urls, *self._given]))[:NODES_MAX]
