"""A damaged queue unit is rebuilt from the log, whichever bit is flipped; nothing else changes."""

from __future__ import annotations

import os
import random

import pytest

from services.reput.dispatcher import Dispatcher
from tests.support.small_dispatch import (
    dispatched,
    fill,
    queue_files,
    units,
)
from tests.support.small_store import SmallStore
from tests.support.small_store import small as small
from tidemark.errors import DamagedFile
from tidemark.formats.checkpoint import Slot, queue_number
from tidemark.offsets import UNIT_SIZE

Place = tuple[str, int, int]


def filled(small: SmallStore) -> Dispatcher:
    fill(small)
    dispatcher = dispatched(small)
    return dispatcher


def overwrite(small: SmallStore, place: Place, data: bytes, at: int = 0) -> None:
    """Overwrite bytes of a unit in its file, from byte ``at`` on."""
    topic, queue, number = place
    size = small.store.config.consume_queue_file_size
    position = number * UNIT_SIZE + at
    start = position - position % size
    path = small.store.queue_directory(topic, queue).path / f"{start:020}"
    with path.open("r+b") as file:
        file.seek(position - start)
        file.write(data[: size - (position - start)])


def mended(dispatcher: Dispatcher, place: Place, bytes_max: int = 700) -> list[Place]:
    topic, queue, number = place
    mending = dispatcher.mending
    mending.begin(queue_number(topic, queue), number)
    while mending.step(dispatcher.position, bytes_max):
        pass
    return mending.replaced


def test_any_damaged_byte_of_any_unit_is_repaired(small: SmallStore) -> None:
    dispatcher = filled(small)
    sound, rng = queue_files(small), random.Random(7)
    for place, unit in sorted(units(small).items()):
        for byte in range(UNIT_SIZE):
            flipped = unit[byte] ^ 1 << rng.randrange(8)
            overwrite(small, place, bytes([flipped]), byte)
            assert mended(dispatcher, place) == [place]
            assert queue_files(small) == sound


def test_neighbours_are_made_again_as_well_and_ends_stay(small: SmallStore) -> None:
    dispatcher = filled(small)
    sound = queue_files(small)
    places = sorted(place for place in units(small) if place[:2] == ("orders", 0))
    totals = dispatcher._queues.totals  # what the next start compares
    for damage in (bytes(UNIT_SIZE * 5), b"\xff" * UNIT_SIZE * 5):
        overwrite(small, places[3], damage)
        wrong = [place for place, unit in units(small).items() if sound_unit(sound, place) != unit]
        assert set(mended(dispatcher, places[5])) >= {places[5], *wrong}
        assert queue_files(small) == sound
    assert dispatcher._queues.totals == totals


def sound_unit(files: dict[str, bytes], place: Place) -> bytes:
    whole = b"".join(
        files[name] for name in sorted(files) if name.startswith(f"{place[0]}/{place[1]}/")
    )
    return whole[place[2] * UNIT_SIZE :][:UNIT_SIZE]


def test_a_sound_unit_or_none_at_all_changes_nothing(small: SmallStore) -> None:
    dispatcher = filled(small)
    sound = queue_files(small)
    for place in (("orders", 0, 0), ("orders", 0, 5), ("orders", 0, 999), ("no", 3, 0)):
        assert mended(dispatcher, place) == []
    assert queue_files(small) == sound


def test_units_of_lost_records_are_left_unchanged(small: SmallStore) -> None:
    """If the record is damaged, its unit is not replaced, and a read reports the damage."""
    dispatcher = filled(small)
    place = ("orders", 0, 4)
    unit = units(small)[place]
    at = int.from_bytes(unit[:8], "big")
    size = small.store.config.commit_log_file_size
    path = small.store.commit_log_dir / f"{at - at % size:020}"
    with path.open("r+b") as file:
        file.seek(at % size + 4)
        file.write(b"\0\0\0\0")
    before = queue_files(small)
    assert mended(dispatcher, place) == []
    assert queue_files(small) == before


def test_the_comparison_goes_on_behind_a_log_file_that_expires_meanwhile(small: SmallStore) -> None:
    """Otherwise a damaged unit would count as valid, and the log as damaged."""
    dispatcher = filled(small)
    sound, size = units(small), small.store.config.commit_log_file_size
    places = sorted(place for place in sound if place[:2] == ("orders", 0))
    for place in places:
        overwrite(small, place, b"\xff" * UNIT_SIZE)
    (*_, last) = places
    assert int.from_bytes(sound[last][:8], "big") >= size
    mending = dispatcher.mending
    mending.begin(queue_number("orders", 0), last[2])
    assert mending.step(dispatcher.position, 1)  # no unit is sound: from the log's start
    assert mending.step(dispatcher.position, 1)
    small.positions.publish(Slot.MIN, size)
    small.log_file(0).unlink()
    while mending.step(dispatcher.position, 700):
        pass
    assert last in mending.replaced
    assert units(small)[last] == sound[last]


def test_repaired_units_are_durable_with_the_next_sync(small: SmallStore) -> None:
    dispatcher = filled(small)
    dispatcher.sync()
    overwrite(small, ("bills", 0, 2), b"\xff", 9)
    assert mended(dispatcher, ("bills", 0, 2))
    job = dispatcher.begin_sync()
    assert job is not None
    assert [path.parent.parent.name for path in job.files] == ["bills"]


def test_a_queue_file_that_was_cut_is_named(small: SmallStore) -> None:
    """The process ended with an exception of the unpacking instead, and without a code."""
    dispatcher = filled(small)
    place = max(place for place in units(small) if place[:2] == ("orders", 0))
    size = small.store.config.consume_queue_file_size
    position = place[2] * UNIT_SIZE
    path = small.queue_file("orders", 0, position - position % size)
    os.truncate(path, 3)
    with pytest.raises(DamagedFile, match="given another size") as damaged:
        mended(dispatcher, ("orders", 0, place[2] - 1))
    assert damaged.value.path == path
