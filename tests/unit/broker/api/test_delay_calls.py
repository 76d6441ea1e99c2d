"""The position of a list: the next request accepts what a response returned."""

from __future__ import annotations

import pytest

from services.broker.api.delay_calls import after_text, parse_after
from services.broker.delay.listing import ListTime
from services.broker.schema.delayed import DelayedQuery
from services.broker.schema.parsing import query
from tidemark.errors import BadRequest


@pytest.mark.parametrize(
    "after", [ListTime(0, 0, 0), ListTime(1_800_000_000_000, 18, 10**12), ListTime(1, 0, 7)]
)
def test_the_next_of_one_page_is_the_after_of_the_following(after: ListTime) -> None:
    text = after_text(after)
    assert parse_after(text) == after
    assert query({"after": text}, DelayedQuery).after == text


@pytest.mark.parametrize(
    "text", ["", "1", "1-2", "1-2-3-4", "a-b-c", "1-2-", "-1-2-3", "1-2-9999999999999999999"]
)
def test_an_after_that_no_answer_gave_is_refused(text: str) -> None:
    with pytest.raises(BadRequest, match="after"):
        query({"after": text}, DelayedQuery)
