"""Lists in pages: every name once, in order, whatever changes between two pages."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.broker.limits import LIST_MAX
from services.broker.read.listing import Page, page_of
from services.broker.schema.parsing import query
from services.broker.schema.values import ListQuery
from shared.runtime.clock import SystemClock
from tidemark.errors import BadRequest


def page(names: Collection[str], after: str, count_max: int) -> Page:
    return asyncio.run(page_of(names, lambda _: True, ListQuery(after, count_max), SystemClock()))


def pages(names: Collection[str], count_max: int) -> list[list[str]]:
    found, after = [], ""
    while True:
        one = page(names, after, count_max)
        found.append(one.names)
        if one.next is None:
            return found
        assert one.next > after
        after = one.next


NAMES = st.text(st.sampled_from("ab%|Z9_-é"), min_size=1, max_size=4)


@given(st.lists(NAMES, max_size=40), st.integers(1, 9))
def test_the_pages_together_are_the_sorted_names(names: list[str], count_max: int) -> None:
    found = pages(names, count_max)
    assert [name for one in found for name in one] == sorted(set(names))
    assert all(len(one) == count_max for one in found[:-1])
    assert len(found[-1]) <= count_max


@given(st.lists(NAMES, unique=True, min_size=1, max_size=20), st.data())
def test_a_name_that_stays_is_on_one_page(names: list[str], data: st.DataObject) -> None:
    staying, now, seen, after = set(names), set(names), list[str](), ""
    while True:
        one = page(now, after, 3)
        seen += one.names
        if one.next is None:
            break
        after = one.next
        gone = data.draw(st.sets(st.sampled_from(sorted(now))))
        staying -= gone
        now = (now - gone) | data.draw(st.sets(NAMES, max_size=3))
    assert len(seen) == len(set(seen))
    assert staying <= set(seen)


def test_names_that_do_not_belong_to_the_list_make_no_page_shorter() -> None:
    names = [f"{number:05}" for number in range(20_000)]
    asked = ListQuery("00100", LIST_MAX)

    def exists(name: str) -> bool:
        return int(name) % 2 == 0

    found = asyncio.run(page_of(names, exists, asked, SystemClock()))
    assert found == Page([f"{number:05}" for number in range(102, 1102, 2)], "01100")


def test_a_list_of_20_000_is_40_answers() -> None:
    names = [f"topic-{number}" for number in range(20_000)]
    found = pages(names, LIST_MAX)
    assert len(found) == 40
    assert [name for one in found for name in one] == sorted(names)


class SlowClock(SystemClock):
    """Each look at it is a slice later."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def monotonic(self) -> float:
        self.seconds += 1.0
        return self.seconds


async def test_other_requests_run_while_names_are_listed() -> None:
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    beside = asyncio.create_task(other())
    names = [f"{number:05}" for number in range(20_000)]
    await page_of(names, lambda _: True, ListQuery(), SlowClock())
    beside.cancel()
    assert turns >= 20_000 // 256


@pytest.mark.parametrize("text", ["0", "-1", str(LIST_MAX + 1), "many", ""])
def test_a_page_has_a_bound(text: str) -> None:
    with pytest.raises(BadRequest, match="max"):
        query({"max": text}, ListQuery)


def test_a_page_is_full_by_default() -> None:
    assert query({}, ListQuery) == ListQuery("", LIST_MAX)
    assert query({"after": "%RETRY%g", "max": "7"}, ListQuery) == ListQuery("%RETRY%g", 7)
