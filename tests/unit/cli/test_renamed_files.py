"""Log files under each other's names: refused by name at the start, and given back by repair."""

from __future__ import annotations

from itertools import permutations
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.support.next_start import FILE, again, fill, fill_to
from tests.support.small_store import SmallStore
from tests.support.small_store import small as small
from tidemark.cli.main import cli
from tidemark.cli.store_rebuild import restore_names
from tidemark.errors import BadRequest, CorruptRecord, LogFilesMisnamed
from tidemark.formats.record_layout import PHYSICAL_OFFSET_AT

FILES = 4
"""Three with records and one made ahead."""
ORDERS = [order for order in permutations(range(FILES)) if list(order) != sorted(order)]


@pytest.fixture
def sound(small: SmallStore) -> SmallStore:
    fill_to(small, (FILES - 2) * FILE)
    fill(small, 2)
    small.flush()
    small.appender.close(clean=False)
    if not small.log_file((FILES - 1) * FILE).exists():
        small.log_file((FILES - 1) * FILE).write_bytes(bytes(FILE))
    assert sorted(p.name for p in small.log_file(0).parent.iterdir()) == [
        small.log_file(number * FILE).name for number in range(FILES)
    ]
    return small


def rename(small: SmallStore, order: tuple[int, ...]) -> None:
    """Let file n have the name of file order[n]."""
    paths = [small.log_file(number * FILE) for number in range(FILES)]
    aside = [path.rename(path.parent.parent / f"aside-{path.name}") for path in paths]
    for number, path in enumerate(aside):
        path.rename(paths[order[number]])


@pytest.mark.parametrize("order", ORDERS, ids=str)
def test_files_under_other_names_are_refused_and_given_their_names_back(
    sound: SmallStore, order: tuple[int, ...]
) -> None:
    """Two files swapped counted as damage at 0, and the cut that was advised lost everything."""
    before = sound.log_bytes()
    rename(sound, order)
    renamed = {number: place for number, place in enumerate(order[: FILES - 1]) if number != place}
    with pytest.raises(LogFilesMisnamed, match=r"store repair --store .* --rename`") as refused:
        again(sound)
    for number, place in renamed.items():
        assert f"{place * FILE:020d} is {number * FILE:020d}" in str(refused.value)
    for options in (["--cut-at", "0", "--yes"], ["--begin-at", str(FILE), "--yes"]):
        done = CliRunner().invoke(
            cli, ["store", "repair", "--store", str(sound.store.root), *options]
        )
        assert (done.exit_code, "--rename" in done.output) == (2, True)
    done = CliRunner().invoke(cli, ["store", "repair", "--store", str(sound.store.root)])
    assert done.exit_code == 0
    assert done.output.count(" should be named ") >= len(renamed)
    restore_names(sound.store.root, lambda text: None)
    assert sound.log_bytes() == before
    assert again(sound).end == sound.end


def test_a_repair_that_was_killed_between_two_names_goes_on(sound: SmallStore) -> None:
    before = sound.log_bytes()
    rename(sound, (1, 2, 0, 3))
    said: list[str] = []

    class Killed(Exception):
        pass

    def die(text: str) -> None:
        said.append(text)
        raise Killed

    with pytest.raises(Killed):
        restore_names(sound.store.root, die)
    restore_names(sound.store.root, said.append)
    assert len(said) == 3
    assert sound.log_bytes() == before


def test_two_files_that_are_one_part_of_the_log_are_left_alone(sound: SmallStore) -> None:
    sound.log_file(FILE).write_bytes(sound.log_file(0).read_bytes())
    before = sound.log_bytes()
    with pytest.raises(LogFilesMisnamed):
        again(sound)
    with pytest.raises(BadRequest, match="same part of the log") as refused:
        restore_names(sound.store.root, lambda text: None)
    assert all(Path(sound.log_file(at)).name in str(refused.value) for at in (0, FILE))
    assert sound.log_bytes() == before


@pytest.mark.parametrize("records", [1, 2])
def test_a_flipped_bit_in_the_position_of_the_first_record_is_damage_and_no_other_name(
    small: SmallStore, records: int
) -> None:
    # 1. A bit made the first record say that it is at another file's start. 2. The file counted as
    #    renamed. 3. The repair that was advised gave the first file the other name.
    fill(small, records)
    small.flush()
    small.appender.close(clean=False)
    with small.log_file(0).open("r+b") as file:
        file.seek(PHYSICAL_OFFSET_AT)
        file.write((1 << 62).to_bytes(8, "big"))
    before = small.log_bytes()
    with pytest.raises(CorruptRecord, match="at physical offset 0"):
        again(small)
    assert small.log_bytes() == before
