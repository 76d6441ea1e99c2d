"""One seeded run; the same seed gives the same run, step by step."""

from __future__ import annotations

from typing import NamedTuple

from tests.simulation.replication.plan import Fault
from tests.simulation.replication.violation import Violation
from tests.simulation.replication.world import World


class Outcome(NamedTuple):
    """Counts of a run without a violation."""

    epochs: int
    acked: int
    read: int
    confirmed: int
    """Bytes of the confirmed log."""
    faults: int
    frames: int
    actions: int
    end_ms: int


class SeedFailed(AssertionError):
    """A run broke a promise; the message has the command that repeats it."""


def run_seed(seed: int, fault: str = "", faults: tuple[Fault, ...] = ()) -> Outcome:
    """Run one seed. Raises SeedFailed.

    fault: name for the command that repeats the run. faults: replace the faults of the seed.
    """
    world = World(seed, faults=faults)
    try:
        world.run()
    except (Exception, Violation) as error:
        again = f".venv/bin/python -m tests.simulation.replication {seed}" + (
            f" --fault {fault}" if fault else ""
        )
        raise SeedFailed(
            f"seed {seed} at {world.timeline.now_us / 1000:.3f} ms: "
            f"{type(error).__name__}: {error}\nagain: {again} --trace"
        ) from error
    history = world.history
    return Outcome(
        epochs=history.epochs_count,
        acked=len(history.acked),
        read=history.reads_count,
        confirmed=len(history.confirmed),
        faults=world.strikes.count,
        frames=world.group.network.frames_count,
        actions=world.timeline.actions_count,
        end_ms=world.timeline.now_us // 1000,
    )
