from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.ha.core.divergence import Extent
from services.ha.core.truncation import CutPlan, HaltPlan, InOrder, Outcome, ResyncPlan, plan
from tests.support.ha_links import entry
from tidemark.formats.epochs import EpochStart

A, B, C = entry(1, 0), entry(2, 100), entry(3, 200)
OWN = Extent((A, B, C), 0, 300)


@pytest.mark.parametrize(
    ("confirm", "kept", "point", "expected"),
    [
        (0, C, 300, InOrder(300)),
        (300, C, 300, InOrder(300)),
        (0, C, 250, CutPlan(250, (A, B, C))),
        (250, C, 250, CutPlan(250, (A, B, C))),
        (251, C, 250, HaltPlan(250, 251)),
        # Where the next entry begins: the table is cut, although the entry starts at the point.
        (200, B, 200, CutPlan(200, (A, B))),
        (0, A, 40, CutPlan(40, (A,))),
        (41, A, 40, HaltPlan(40, 41)),
    ],
)
def test_every_case_of_a_point(
    confirm: int, kept: EpochStart, point: int, expected: Outcome
) -> None:
    assert plan(OWN, confirm=confirm, entry=kept, point=point, master_first=0) == expected


def test_the_table_is_cut_also_when_no_byte_is() -> None:
    own = Extent((A, B, C), 0, 200)
    expected = CutPlan(200, (A, B))
    assert plan(own, confirm=200, entry=B, point=200, master_first=0) == expected


def test_an_empty_log_is_in_order_unless_its_table_says_otherwise() -> None:
    empty = Extent((), 50, 50)
    assert plan(empty, confirm=0, entry=None, point=50, master_first=0) == InOrder(50)
    stale = Extent((A,), 50, 50)
    assert plan(stale, confirm=0, entry=None, point=50, master_first=0) == CutPlan(50, ())


def test_a_point_below_the_own_first_offset_leaves_nothing_to_keep() -> None:
    own = Extent((A, B, C), 150, 300)
    expected = ResyncPlan(20, "below_first_offset")
    assert plan(own, confirm=0, entry=A, point=90, master_first=20) == expected
    # But confirmed bytes are not discarded without an operator.
    assert plan(own, confirm=160, entry=A, point=90, master_first=20) == HaltPlan(90, 160)


@pytest.mark.parametrize(("kept", "point"), [(B, 201), (C, 301), (A, 101)])
def test_a_point_that_the_entry_cannot_mean_is_refused(kept: EpochStart, point: int) -> None:
    with pytest.raises(ValueError, match=str(point)):
        plan(OWN, confirm=0, entry=kept, point=point, master_first=0)
    with pytest.raises(ValueError, match="not in tuple"):
        plan(OWN, confirm=0, entry=entry(7, 7), point=1, master_first=0)


@given(st.integers(0, 300), st.integers(0, 300), st.sampled_from([A, B, C]))
def test_nothing_below_confirm_is_ever_cut(confirm: int, point: int, kept: EpochStart) -> None:
    limit = {A: 100, B: 200, C: 300}[kept]
    outcome = plan(OWN, confirm=confirm, entry=kept, point=min(point, limit), master_first=0)
    if isinstance(outcome, CutPlan):
        assert outcome.point >= confirm
        assert outcome.table[-1] == kept
    else:
        assert isinstance(outcome, HaltPlan if min(point, limit) < confirm else InOrder)
