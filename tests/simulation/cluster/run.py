"""Plays one seed; the same seed gives the same history."""

from __future__ import annotations

from collections.abc import Sequence

from tests.simulation.cluster.judge import Counts
from tests.simulation.cluster.plan import SMALL, Fault, Size, draw
from tests.simulation.cluster.world import World


class SeedFailed(AssertionError):
    """A history broke a promise; the message has the command that repeats it."""


def run_seed(
    seed: int, size: Size = SMALL, fault: str = "", faults: Sequence[Fault] = ()
) -> Counts:
    """Play one seed. Raises SeedFailed.

    fault: name for the command that repeats the history. faults: replace those of the seed.
    """
    world = World(seed, draw(seed, size, faults))
    try:
        return world.run()
    except Exception as error:
        again = f".venv/bin/python -m tests.simulation.cluster {seed}" + (
            f" --fault {fault}" if fault else ""
        )
        raise SeedFailed(
            f"seed {seed} at {world.loop.time():.3f} s: {type(error).__name__}: {error}\n"
            f"again: {again} --trace"
        ) from error
