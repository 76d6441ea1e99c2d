"""The table of states: every state with every trigger."""

from __future__ import annotations

import itertools

import pytest

from services.ha.core.states import State, Trigger, copies, has_term, next_state
from tests.support.for_each import for_each

ABBREVIATIONS = {
    "rec": State.RECOVERING,
    "fol": State.FOLLOWER,
    "tru": State.TRUNCATING,
    "res": State.RESYNC,
    "cat": State.CATCHUP,
    "syn": State.IN_SYNC,
    "can": State.CANDIDATE,
    "pro": State.PROMOTING,
    "mas": State.MASTER,
    "fen": State.FENCED,
    "hal": State.HALTED,
}
# "=": the state stays. "-": the pair cannot occur, and raises.
TABLE = """
                rec  fol  tru  res  cat  syn  can  pro  mas  fen  hal
recovered       fol  -    -    -    -    -    -    -    -    -    -
damaged         hal  hal  hal  hal  hal  hal  hal  fen  fen  hal  =
in-order        -    cat  -    -    -    -    -    -    -    -    -
must-cut        -    tru  -    -    -    -    -    -    -    -    -
cut             -    -    fol  -    -    -    -    -    -    -    =
must-resync     -    res  -    -    -    -    -    -    -    -    -
resynced        -    -    -    fol  -    -    -    -    -    -    =
published       -    -    -    -    syn  -    -    -    -    -    -
removed         -    -    -    -    -    cat  -    -    -    -    -
link-lost       -    =    =    =    fol  fol  =    =    =    =    =
campaigns       -    can  -    -    -    -    -    -    -    -    -
lost            -    -    -    -    -    -    fol  -    -    -    =
won             -    -    -    -    -    -    pro  -    -    -    =
opened          -    -    -    -    -    -    -    mas  -    -    -
deposed         -    -    -    -    -    -    -    fen  fen  =    =
torn-down       -    -    -    =    -    -    -    -    -    fol  =
ordered-resync  -    res  =    =    res  res  =    =    =    =    res
adopted         -    -    -    -    -    -    -    -    -    -    fol
"""


def _table() -> dict[tuple[State, Trigger], State | None]:
    """The next state of every pair; None if it cannot occur."""
    head, *rows = (line.split() for line in TABLE.strip().splitlines())
    states = [ABBREVIATIONS[name] for name in head]
    return {
        (state, Trigger(trigger)): state if cell == "=" else ABBREVIATIONS.get(cell)
        for trigger, *cells in rows
        for state, cell in zip(states, cells, strict=True)
    }


PAIRS = _table()
MOVES = {pair: after for pair, after in PAIRS.items() if after not in (None, pair[0])}


def test_the_table_names_every_pair() -> None:
    assert set(PAIRS) == set(itertools.product(State, Trigger))


@for_each(("state", "trigger"), PAIRS)
def test_every_pair_moves_stays_or_raises_as_the_table_says(state: State, trigger: Trigger) -> None:
    expected = PAIRS[state, trigger]
    if expected is None:
        with pytest.raises(AssertionError, match=f"{trigger.value} .* {state.value}"):
            next_state(state, trigger)
    else:
        assert next_state(state, trigger) is expected


def test_only_a_promoted_candidate_is_ever_master() -> None:
    def before(reached: State) -> list[tuple[State, Trigger]]:
        return [pair for pair, after in MOVES.items() if after is reached]

    assert before(State.MASTER) == [(State.PROMOTING, Trigger.OPENED)]
    assert before(State.PROMOTING) == [(State.CANDIDATE, Trigger.WON)]


def test_a_term_ends_nowhere_but_in_its_tearing_down() -> None:
    after_term = {after for (state, _), after in MOVES.items() if has_term(state)}
    assert after_term == {State.MASTER, State.FENCED}


def test_only_an_operator_moves_a_halted_replica() -> None:
    moving = {trigger for state, trigger in MOVES if state is State.HALTED}
    assert moving == {Trigger.ORDERED_RESYNC, Trigger.ADOPTED}


def test_every_state_can_be_reached() -> None:
    reached = {State.RECOVERING}
    for _ in State:
        reached |= {after for (state, _), after in MOVES.items() if after and state in reached}
    assert reached == set(State)


def test_no_replica_copies_and_has_a_term() -> None:
    assert not [state for state in State if copies(state) and has_term(state)]
