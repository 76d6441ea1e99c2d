"""Ack levels of sends in a group, over all sets, requested levels and changes meanwhile."""

from __future__ import annotations

import itertools

import pytest

from services.broker.log.ack_levels import AckLevel, InSyncCount, Reached, admit, reached
from tests.support.for_each import for_each
from tidemark.errors import NotEnoughReplicas

SIZES = range(4)
LEASTS = range(1, 4)
ASKED = (None, *AckLevel)


@for_each(("asked", "size", "least"), list(itertools.product(ASKED, SIZES, LEASTS)))
def test_an_unattainable_level_is_refused_before_anything_is_stored(
    asked: AckLevel | None, size: int, least: int
) -> None:
    too_few = size < least or (asked is AckLevel.REPLICATED and size < 2)
    if too_few:
        with pytest.raises(NotEnoughReplicas, match="Nothing was stored"):
            admit(asked, InSyncCount(size, least))
        return
    made = admit(asked, InSyncCount(size, least))
    assert made.members == size
    if asked is None:
        assert made.level is (AckLevel.REPLICATED if size >= 2 else AckLevel.DISK)
        assert made.by_the_group, "also what a lone member has must outlive the next failover"
    else:
        assert made.level is asked
        assert made.by_the_group == (asked is AckLevel.REPLICATED)


@for_each(
    ("asked", "then", "now", "least"), list(itertools.product(ASKED, range(1, 4), SIZES, LEASTS))
)
def test_an_answer_claims_no_more_copies_than_there_were_or_are(
    asked: AckLevel | None, then: int, now: int, least: int
) -> None:
    try:
        made = admit(asked, InSyncCount(then, least))
    except NotEnoughReplicas:
        return
    said = reached(made, InSyncCount(now, least))
    if made.level in (AckLevel.MEMORY, AckLevel.DISK) and asked is not None:
        assert said == Reached(made.level, 1)
    elif now < least:
        assert said is None, "a set that is too small acknowledges nothing"
    elif min(then, now) >= 2:
        assert said == Reached(AckLevel.REPLICATED, min(then, now))
    elif asked is AckLevel.REPLICATED:
        assert said is None, "replicated is said of two copies or more"
    else:
        assert said == Reached(AckLevel.DISK, 1)


def test_a_set_of_unknown_size_is_refused_even_without_a_requested_level() -> None:
    with pytest.raises(NotEnoughReplicas) as caught:
        admit(None, InSyncCount(0, 0))
    assert caught.value.facts["in_sync"] == 0
