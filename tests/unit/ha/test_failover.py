"""The table of states: every state with every happening."""

from __future__ import annotations

import itertools

import pytest

from services.ha.failover import Happening, State, after, copies, reigns

EVERY = list(itertools.product(State, Happening))
MOVES = {
    "recovering recovered": "follower",
    "follower in-order": "catchup",
    "follower must-cut": "truncating",
    "follower must-resync": "resync",
    "follower below-confirm": "halted",
    "truncating cut": "follower",
    "resync resynced": "follower",
    "catchup published": "in-sync",
    "in-sync removed": "catchup",
    "catchup link-lost": "follower",
    "in-sync link-lost": "follower",
    "follower stands": "candidate",
    "catchup stands": "candidate",
    "in-sync stands": "candidate",
    "candidate lost": "follower",
    "candidate won": "promoting",
    "promoting opened": "master",
    "promoting deposed": "fenced",
    "master deposed": "fenced",
    "fenced torn-down": "follower",
    "follower ordered-resync": "resync",
    "catchup ordered-resync": "resync",
    "in-sync ordered-resync": "resync",
    "halted ordered-resync": "resync",
    "halted adopted": "follower",
    "promoting damaged": "fenced",
    "master damaged": "fenced",
}


@pytest.mark.parametrize(("state", "happening"), EVERY)
def test_every_pair_moves_as_written_down_or_not_at_all(state: State, happening: Happening) -> None:
    expected = MOVES.get(f"{state.value} {happening.value}")
    if happening is Happening.DAMAGED and not reigns(state):
        expected = "halted"
    assert after(state, happening).value == (expected or state.value)


def test_only_a_promoted_candidate_is_ever_master() -> None:
    def before(reached: State) -> list[tuple[State, Happening]]:
        return [(s, h) for s, h in EVERY if after(s, h) is reached and s is not reached]

    assert before(State.MASTER) == [(State.PROMOTING, Happening.OPENED)]
    assert before(State.PROMOTING) == [(State.CANDIDATE, Happening.WON)]


def test_a_term_ends_nowhere_but_in_its_tearing_down() -> None:
    after_reign = {after(s, h) for s, h in EVERY if reigns(s)} - {State.PROMOTING, State.MASTER}
    assert after_reign == {State.FENCED}


def test_only_an_operator_moves_a_halted_replica() -> None:
    moving = {h for h in Happening if after(State.HALTED, h) is not State.HALTED}
    assert moving == {Happening.ORDERED_RESYNC, Happening.ADOPTED}


def test_every_state_can_be_reached() -> None:
    reached = {State.RECOVERING}
    while True:
        wider = reached | {after(s, h) for s in reached for h in Happening}
        if wider == reached:
            break
        reached = wider
    assert reached == set(State)


def test_nobody_copies_and_reigns() -> None:
    assert not [state for state in State if copies(state) and reigns(state)]
