"""An index file whose writer is killed between any two instructions of a put is healed."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from tests.support.index_rows import Row, packed
from tests.support.kill_points import killed_at
from tests.support.machine_steps import shared_memory, states_between_instructions
from tests.support.sim_disk import SimCrash
from tests.support.twins import twins_of
from tidemark.formats import index_chains, index_file
from tidemark.formats.index_file import Geometry, IndexFile

GEOMETRY = Geometry(slots=3, entries=12)
WITHIN = ("/tidemark/formats/index_file.py", "/tidemark/formats/index_chains.py")
Put = Callable[[IndexFile, list[Row]], object]


def put_one_by_one(index: IndexFile, rows: list[Row]) -> None:
    for row in rows:
        index.put_rows(packed([row]))


def put_at_once(index: IndexFile, rows: list[Row]) -> None:
    index.put_rows(packed(rows))


@pytest.fixture
def pure(monkeypatch: pytest.MonkeyPatch) -> None:
    """The originals put, whose instructions the interpreter can count."""
    monkeypatch.setattr(index_file, "put_rows", index_chains.put_rows)


def rows_from(random: Random, first: int, count: int) -> list[Row]:
    """Rows of one record after another; few slots, so that chains grow."""
    return [
        (random.randrange(7), 100 * (first + number), 1_000_000 + 1500 * (first + number))
        for number in range(count)
    ]


def after_puts(raw: bytearray, put: Put, rows: list[Row]) -> IndexFile:
    index = IndexFile(memoryview(raw), GEOMETRY)
    put(index, rows)
    return index


@pytest.mark.parametrize("put", [put_one_by_one, put_at_once])
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.usefixtures("pure")
def test_a_kill_inside_put_is_undone_by_heal(put: Put, seed: int) -> None:
    random = Random(seed)
    old_count = random.choice((0, 0, 1, 4, 7))
    old = rows_from(random, 1, old_count)
    new = rows_from(random, 1 + old_count, random.choice((1, 2, 4)))
    before = bytearray(GEOMETRY.size)
    after_puts(before, put_one_by_one, old)
    whole = bytearray(before)
    with killed_at(None, within=WITHIN, instructions=True) as steps:
        after_puts(whole, put, new)

    kills = 0
    for step in range(1, steps.taken + 1):
        raw, at_kill = bytearray(before), bytearray()
        with (
            pytest.raises(SimCrash),
            killed_at(
                step,
                within=WITHIN,
                instructions=True,
                at_kill=lambda raw=raw, kept=at_kill: kept.extend(raw),  # type: ignore[misc]
            ),
        ):
            after_puts(raw, put, new)
        kills += 1
        check_healed(at_kill, whole, old, new, put, f"seed {seed}, step {step}")
    assert kills == steps.taken > 50


def check_healed(
    at_kill: bytearray, whole: bytes | bytearray, old: list[Row], new: list[Row], put: Put, at: str
) -> None:
    """Heal the file after a kill; all its keys are found, and continuing gives the complete
    bytes."""
    index = IndexFile(memoryview(at_kill), GEOMETRY)
    index.heal()
    there = index.entry_count
    assert len(old) <= there <= len(old) + len(new)
    for key_hash in range(7):
        expected = [row[1] for row in (old + new)[:there] if row[0] == key_hash][::-1]
        found = index.lookup(key_hash, begin_ms=0, end_ms=1 << 60, hits_max=100)
        assert found == expected, f"{at}, hash {key_hash}"
    put(index, (old + new)[there:])
    assert at_kill == whole, f"{at}: bytes differ after going on"


@pytest.mark.parametrize("put_rows", twins_of("index", index_chains.put_rows)[1:])
@pytest.mark.parametrize("seed", range(30))
def test_a_kill_between_two_machine_instructions_of_put_is_undone_by_heal(
    put_rows: Callable[..., int], seed: int
) -> None:
    random = Random(seed)
    old_count = random.choice((0, 0, 1, 4, 7))
    old = rows_from(random, 1, old_count)
    new = rows_from(random, 1 + old_count, random.choice((1, 2, 4)))
    memory = shared_memory(GEOMETRY.size)
    view, rows = memoryview(memory), packed(new)
    put_rows(view, *GEOMETRY, packed(old), 0)
    states = states_between_instructions(memory, lambda: put_rows(view, *GEOMETRY, rows, 0))
    # Each slot and header word is one store; entries are several.
    assert len(states) > 3 + len(new)
    for number, state in enumerate(states):
        check_healed(bytearray(state), states[-1], old, new, put_at_once, f"seed {seed}, {number}")


@pytest.mark.parametrize("seed", range(4))
def test_a_kill_inside_heal_is_healed_by_the_next(seed: int) -> None:
    random = Random(seed)
    old, new = rows_from(random, 1, 3), rows_from(random, 4, 4)
    whole = bytearray(GEOMETRY.size)
    after_puts(whole, put_one_by_one, old)
    counts = bytes(whole[32:40])
    before = bytes(whole)
    after_puts(whole, put_at_once, new)
    torn = bytearray(whole)
    torn[32:40] = counts  # killed just before the counts moved
    torn[8:16], torn[24:32] = before[8:16], before[24:32]
    with killed_at(None, within=WITHIN, instructions=True) as steps:
        IndexFile(memoryview(bytearray(torn)), GEOMETRY).heal()
    for step in range(1, steps.taken + 1):
        raw, at_kill = bytearray(torn), bytearray()
        with (
            pytest.raises(SimCrash),
            killed_at(
                step,
                within=WITHIN,
                instructions=True,
                at_kill=lambda raw=raw, kept=at_kill: kept.extend(raw),  # type: ignore[misc]
            ),
        ):
            IndexFile(memoryview(raw), GEOMETRY).heal()
        index = IndexFile(memoryview(at_kill), GEOMETRY)
        index.heal()
        assert bytes(at_kill) == before
        put_at_once(index, new)
        assert at_kill == whole
