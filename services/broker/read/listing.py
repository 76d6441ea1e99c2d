"""Sorted lists of names with pagination; the names of a page are computed in slices.

A page holds the first names after the last one of the previous page. Therefore a name that exists
during the whole listing is on exactly one page, whatever is created or deleted in between. The
callers ``http_api`` and ``group_calls`` receive the request for a list before this step, and build
the answer from the names after it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection
from typing import Final, NamedTuple

from services.broker.schema.values import ListQuery
from shared.runtime.pauses import Pauses
from shared.runtime.time_slicer import TimeSlicer
from tidemark.clock import Clock

_STEP: Final = 256
"""Names that are processed between two checks of the slice's end."""


class Page(NamedTuple):
    """One page of names."""

    names: list[str]
    """The names in ascending order."""
    next: str | None
    """Value of ``after`` for the next page; None if there are no more names."""


async def page_of(
    names: Collection[str], exists: Callable[[str], bool], asked: ListQuery, clock: Clock
) -> Page:
    """Return the requested page.

    names: a copy, in any order, possibly with duplicates. exists: whether a name belongs to the
    list; called only for names that may be on the page.
    """
    slicer = TimeSlicer(clock, Pauses())
    found: list[str] = []
    remaining = iter(names)
    while step := list(itertools.islice(remaining, _STEP)):
        # One name more than the page size is kept, to know whether there is a next page.
        last = found[-1] if len(found) > asked.count_max else None
        fitting = [
            name
            for name in step
            if name > asked.after and (last is None or name < last) and exists(name)
        ]
        if fitting:
            found = sorted({*found, *fitting})[: asked.count_max + 1]
        if slicer.over:
            await slicer.pass_on()
    page = found[: asked.count_max]
    return Page(page, page[-1] if len(found) > asked.count_max else None)
