from __future__ import annotations

from pathlib import Path

import pytest

from drills.families import all_drills
from drills.finding import StateChange
from drills.picture import draw
from drills.running import Session
from drills.stage import Needs, Stage, drill

DRILLS = {found.name: found for found in all_drills()}


def test_a_picture_shows_acks_and_roles(tmp_path: Path) -> None:
    session = Session("group0", 100.0, 130.0)
    session.acks = [(100.0 + number / 10, 4) for number in range(250)]
    session.changes = [
        StateChange(100.0, "n0", "master", 1),
        StateChange(110.0, "n0", "silent", 1),
        StateChange(100.0, "n1", "in-sync", 1),
        StateChange(113.0, "n1", "master", 2),
    ]
    session.faults = [(110.0, "1")]
    draw(session, tmp_path / "picture.svg")
    assert "messages acked per second" in (tmp_path / "picture.svg").read_text(encoding="utf-8")


def test_drills_have_numbers_and_names_of_their_own() -> None:
    drills = list(all_drills())
    assert len({found.number for found in drills}) == len(drills)
    missing = {*range(1, 41), 43, 45, 47, 48, 49} - {
        int(found.number.rstrip("abc")) for found in drills
    }
    assert not missing


def test_two_drills_of_one_name_are_a_mistake() -> None:
    async def run(stage: Stage) -> None:
        del stage

    all_drills()
    with pytest.raises(AssertionError, match="two drills"):
        drill("1", "again", Needs(), name="kill-master")(run)
