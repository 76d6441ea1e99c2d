"""Lists by name, one page per answer: the names of a page are found in slices.

A page holds the first names behind the last one of the page before. So a name that exists while
all pages are asked for is on exactly one of them, whatever is made or deleted in between. Before:
``http_api`` or ``groups.calls`` has a request for a list. After: it describes and answers them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Mapping
from typing import Final, NamedTuple

from services.broker.api.http_requests import number
from services.broker.api.limits import LIST_MAX
from shared.runtime.give_way import GiveWay
from shared.runtime.turns import Turns
from tidemark.clock import Clock

LIST_PARAMETERS: Final = frozenset({"after", "max"})
_STEP: Final = 256
"""Names that are looked at between two turns of the loop at least."""


class ListRequest(NamedTuple):
    """Which part of a list is asked for."""

    after: str = ""
    """The page begins behind this name, which need not exist."""
    count_max: int = LIST_MAX


class Page(NamedTuple):
    """Some names of a list."""

    names: list[str]
    """In order."""
    next: str | None
    """What ``after`` of the next page is; None if there are no more names."""


def list_request(given: Mapping[str, str]) -> ListRequest:
    """The request that a query's parameters make. Raises BadRequest."""
    return ListRequest(given.get("after", ""), number(given, "max", LIST_MAX, 1, LIST_MAX))


async def page_of(
    names: Collection[str], exists: Callable[[str], bool], asked: ListRequest, clock: Clock
) -> Page:
    """The page that is asked for.

    names: a copy, in any order, some perhaps twice. exists: whether a name belongs to the list;
    asked only for those that may be on the page.
    """
    turns = Turns(clock, GiveWay())
    found: list[str] = []
    remaining = iter(names)
    while step := list(itertools.islice(remaining, _STEP)):
        # One name more than a page has: whether there is a next one.
        last = found[-1] if len(found) > asked.count_max else None
        fitting = [
            name
            for name in step
            if name > asked.after and (last is None or name < last) and exists(name)
        ]
        if fitting:
            found = sorted({*found, *fitting})[: asked.count_max + 1]
        if turns.over:
            await turns.pass_on()
    page = found[: asked.count_max]
    return Page(page, page[-1] if len(found) > asked.count_max else None)
