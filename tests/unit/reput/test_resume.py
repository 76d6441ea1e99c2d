"""The resume decision for every combination of inputs."""

from __future__ import annotations

from itertools import product

import pytest

from services.reput.resume import (
    REBUILDING,
    Counted,
    Decision,
    IndexMode,
    Marks,
    QueueMode,
    bounds,
    decide,
)
from tidemark.formats.checkpoint import resume_check

UNITS, FIRSTS, ENTRIES = 30, 4, 50
WHOLE = Counted(UNITS, FIRSTS, ENTRIES, is_whole=True)


def marks(
    *,
    log_min: int = 0,
    log_end: int = 1000,
    dispatched: int = 800,
    durable: int = 500,
    generation: bool = True,
    boot: bool = True,
    check: int | None = None,
) -> Marks:
    return Marks(
        log_min,
        log_end,
        dispatched,
        durable,
        generation,
        boot,
        UNITS,
        FIRSTS,
        ENTRIES,
        resume_check(durable, UNITS, ENTRIES) if check is None else check,
    )


def decided(known: Marks, counted: Counted = WHOLE) -> Decision:
    return decide(known, bounds(known), counted)


def test_after_a_kill_of_reput_queues_keep_published_units() -> None:
    assert bounds(marks()).keep == 800
    decision = decided(marks())
    assert (decision.queue_mode, decision.index_mode) == (QueueMode.CONTINUE, IndexMode.CONTINUE)
    assert (decision.start, decision.dispatched) == (500, 800)


def test_after_another_recovery_only_synced_units_count() -> None:
    known = marks(generation=False)
    assert bounds(known).keep == 500
    assert (decided(known).start, decided(known).dispatched) == (500, 500)
    assert decided(known).index_mode is IndexMode.CONTINUE


def test_after_a_power_cut_open_index_files_are_made_again() -> None:
    known = marks(generation=False, boot=False)
    assert decided(known).queue_mode is QueueMode.CONTINUE
    assert decided(known).index_mode is IndexMode.REOPEN


@pytest.mark.parametrize(
    "counted",
    [
        WHOLE._replace(units=UNITS - 1),
        WHOLE._replace(units=UNITS + 1),
        WHOLE._replace(firsts=FIRSTS + 7),
        WHOLE._replace(is_whole=False),
    ],
)
def test_totals_that_differ_begin_the_queues_anew(counted: Counted) -> None:
    decision = decided(marks(), counted)
    assert decision.queue_mode is QueueMode.REBUILD
    assert (decision.start, decision.dispatched) == (0, 0)
    assert decision.index_mode is IndexMode.CONTINUE, "the index is whole"


def test_missing_index_entries_begin_the_index_anew_and_the_queues_go_on() -> None:
    decision = decided(marks(), WHOLE._replace(index_entries=ENTRIES - 1))
    assert (decision.queue_mode, decision.index_mode) == (QueueMode.CONTINUE, IndexMode.REBUILD)
    assert decision.dispatched == 800


def test_totals_that_were_published_in_part_prove_nothing() -> None:
    decision = decided(marks(check=1))
    assert (decision.queue_mode, decision.index_mode) == (QueueMode.REBUILD, IndexMode.COMPARE)


def test_a_log_that_begins_behind_the_mark_begins_anew() -> None:
    decision = decided(marks(log_min=600))
    assert (decision.queue_mode, decision.start) == (QueueMode.REBUILD, 600)


def test_a_log_that_ends_below_the_mark_takes_it_back() -> None:
    known = marks(log_end=450, generation=False)
    assert bounds(known) == bounds(known)._replace(durable=500, keep=450)
    decision = decided(known)
    assert (decision.queue_mode, decision.start, decision.dispatched) == (
        QueueMode.CONTINUE,
        450,
        450,
    )


def test_a_store_that_was_never_synced_is_adopted() -> None:
    known = marks(durable=0, dispatched=0, generation=False, boot=False, check=0, log_min=64)
    assert bounds(known).keep == 1000
    decision = decided(known)
    assert (decision.queue_mode, decision.index_mode) == (QueueMode.ADOPT, IndexMode.COMPARE)
    assert (decision.start, decision.dispatched) == (64, 64)


def test_units_with_addresses_of_extensions_are_made_again_before_anything_is_seen() -> None:
    known = marks(durable=0, dispatched=0, generation=False, boot=False, check=0, log_min=64)
    decision = decided(known._replace(has_extensions=True))
    assert (decision.queue_mode, decision.index_mode) == (QueueMode.REBUILD, IndexMode.COMPARE)
    assert (decision.start, decision.dispatched) == (64, 64)


def test_killed_before_the_first_sync_consumers_still_do_not_see_queues_shrink() -> None:
    known = marks(durable=0, check=0)
    assert bounds(known).keep == 800
    assert (decided(known).queue_mode, decided(known).dispatched) == (QueueMode.ADOPT, 800)


@pytest.mark.parametrize("generation", [True, False])
def test_a_rebuild_that_was_interrupted_is_a_rebuild_again(generation: bool) -> None:
    known = marks(durable=0, generation=generation)._replace(units=REBUILDING)
    decision = decided(known, Counted(UNITS, FIRSTS, ENTRIES, is_whole=True))
    assert decision.queue_mode is QueueMode.REBUILD
    assert decision.dispatched == (800 if generation else 0)


def test_for_all_inputs_no_possibly_missing_record_is_visible() -> None:
    """Check the invariants of a decision over the product of all inputs."""
    for log_min, log_end, dispatched, durable, generation, boot, sound, units, whole in product(
        (0, 300, 700),
        (700, 1000),
        (0, 500, 900, 1200),
        (0, 500, 1100),
        (True, False),
        (True, False),
        (True, False),
        (UNITS, UNITS - 1, REBUILDING),
        (True, False),
    ):
        known = marks(
            log_min=log_min,
            log_end=log_end,
            dispatched=dispatched,
            durable=durable,
            generation=generation,
            boot=boot,
            check=None if sound else 0,
        )
        if units == REBUILDING:
            known = known._replace(units=REBUILDING)
        limits = bounds(known)
        decision = decide(known, limits, WHOLE._replace(units=units, is_whole=whole))
        assert log_min <= decision.start <= log_end
        assert decision.start <= decision.dispatched <= log_end
        assert limits.keep <= log_end
        if not generation:
            assert decision.dispatched in (decision.start, limits.durable)
        if decision.queue_mode is QueueMode.CONTINUE:
            assert sound
            assert whole
            assert units == UNITS
        if not boot:
            assert decision.index_mode is not IndexMode.CONTINUE
