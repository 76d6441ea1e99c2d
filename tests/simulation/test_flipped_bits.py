"""A flipped bit is reported below a durable mark, cut above, and never read as a message.

Each seed does some work, loses power, and then one bit of the remaining bytes is wrong.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from shared.files.commit_log import CommitLogReader
from tests.simulation import checks
from tests.simulation.history import History, Sent
from tests.simulation.machine import ROOT, Machine
from tests.simulation.run import Run
from tests.simulation.schedule import Step
from tests.support.sim_disk import KEEP_ALL, SimDisk
from tidemark.errors import CorruptRecord, StoreError
from tidemark.offsets import PhysicalOffset

SEEDS = max(1, int(os.environ.get("TIDEMARK_SIM_SEEDS", "400")) // 4)
FIRST_SEED = int(os.environ.get("TIDEMARK_SIM_FIRST_SEED", "0"))
CHUNK = max(100, SEEDS // 10)
MANY = 100
STEPS = (Step.SEND, Step.SEND, Step.SEND, Step.FLUSH, Step.DISPATCH, Step.SYNC)


class Damaged:
    """A node that worked, then lost power; the image it left, and the messages that must exist."""

    def __init__(self, seed: int, unflushed: int) -> None:
        """unflushed: at least this many messages at the end that were not reported as durable."""
        self.seed = seed
        run = Run(seed)
        self.scale = run.scale._replace(
            fails_syncs=False,
            fills_disk=False,
            config=replace(run.scale.config, record_crc=True),
        )
        run.scale = self.scale
        self.random = Random(seed)
        machine = run.start()
        for _ in range(30):
            run.apply(machine, self.random.choice(STEPS))
        if not run.history.sent:
            run.apply(machine, Step.SEND)
        machine.flush()
        run.history.ack(machine.appender.flushed)
        while len(run.history.sent) - len(self.acked(run.history)) < unflushed:
            run.apply(machine, Step.SEND)
        machine.commit()
        self.history = run.history
        self.history.power_cut()
        self.image = run.disk.power_cut(self.random, KEEP_ALL)

    def acked(self, history: History) -> list[Sent]:
        return [sent for sent in history.sent if sent.end <= history.acked_end]

    def flip(self, sent: Sent) -> int:
        """Flip a random bit of one record; return the physical offset of its byte."""
        at = sent.start + self.random.randrange(sent.size)
        base = at - at % self.scale.config.commit_log_file_size
        bit = (at - base) * 8 + self.random.randrange(8)
        self.image.flip_bit(ROOT / "commitlog" / f"{base:020}", bit)
        return at

    def start(self) -> Machine:
        """Start on the damaged image and catch up."""
        machine = Machine(self.image, self.scale.config, self.scale.log, self.history, boot=2)
        machine.start_reput()
        machine.dispatch_all()
        return machine

    def try_start(self) -> Machine | StoreError:
        """Start, or return the documented error that prevents it."""
        try:
            return self.start()
        except StoreError as error:
            return error


def seeds(first: int) -> Iterator[int]:
    """The seeds of one chunk; a failure of one of them has the command that repeats it."""
    for seed in range(first, min(first + CHUNK, FIRST_SEED + SEEDS)):
        print(
            f"seed {seed}; again: TIDEMARK_SIM_FIRST_SEED={seed} TIDEMARK_SIM_SEEDS=1 "
            ".venv/bin/pytest tests/simulation/test_flipped_bits.py"
        )
        yield seed


def log_of(disk: SimDisk) -> dict[Path, bytes]:
    return {path: raw for path, raw in disk.files() if path.parent.name == "commitlog"}


def holds(log: dict[Path, bytes], other: dict[Path, bytes]) -> bool:
    """Return whether other has every byte of log; preallocated files do not matter."""
    return all(other.get(path, b"") == raw for path, raw in log.items() if raw.strip(b"\0"))


@pytest.mark.parametrize("first", range(FIRST_SEED, FIRST_SEED + SEEDS, CHUNK))
def test_a_flipped_bit_below_a_durable_mark_is_named_and_nothing_is_cut(first: int) -> None:
    at_start = when_read = 0
    for seed in seeds(first):
        damaged = Damaged(seed, unflushed=0)
        victim = damaged.random.choice(damaged.acked(damaged.history))
        damaged.flip(victim)
        before = log_of(damaged.image)
        started = damaged.try_start()
        if isinstance(started, Machine):
            when_read += 1
            reader = CommitLogReader(started.store, started.positions)
            with pytest.raises(CorruptRecord) as caught:
                reader.record(PhysicalOffset(victim.start), started.recovered.end)
            started = caught.value
        else:
            at_start += 1
        assert isinstance(started, CorruptRecord), f"seed {seed}: {started}"
        assert started.at == victim.start, f"seed {seed}"
        assert holds(before, log_of(damaged.image)), f"seed {seed}: the log was changed"
    print(f"named at the start: {at_start}, when read: {when_read}")
    if at_start + when_read >= MANY:
        assert at_start
        assert when_read


@pytest.mark.parametrize("first", range(FIRST_SEED, FIRST_SEED + SEEDS, CHUNK))
def test_a_flipped_bit_above_every_durable_mark_is_cut_cleanly(first: int) -> None:
    for seed in seeds(first):
        damaged = Damaged(seed, unflushed=3)
        history = damaged.history
        acked = damaged.acked(history)
        victim = damaged.random.choice(history.sent[len(acked) :])
        damaged.flip(victim)
        machine = damaged.start()
        end = machine.recovered.end
        kept = [sent for sent in history.sent if sent.start < victim.start]
        assert end == (kept[-1].end if kept else 0) or end == victim.start, f"seed {seed}"
        history.restarted(end, checks.walk_log(damaged.image, ROOT, end))
        assert history.sent == kept, f"seed {seed}"
        checks.check_nothing_behind(damaged.image, ROOT, end)
        checks.check_units(damaged.image, ROOT, history, machine.dispatched, exact=True)
        assert damaged.image.list_directory(ROOT / "cut"), f"seed {seed}: nothing was kept aside"


@pytest.mark.parametrize("first", range(FIRST_SEED, FIRST_SEED + SEEDS, CHUNK))
def test_a_flipped_bit_in_any_file_gives_a_documented_error_or_nothing(first: int) -> None:
    """The log keeps every byte, whatever derived file is wrong."""
    for seed in seeds(first):
        damaged = Damaged(seed, unflushed=0)
        before = log_of(damaged.image)
        candidates = [
            (path, raw)
            for path, raw in damaged.image.files()
            if raw.strip(b"\0") and path.parent.name != "commitlog"
        ]
        path, raw = damaged.random.choice(candidates)
        at = damaged.random.choice([at for at, byte in enumerate(raw) if byte])
        damaged.image.flip_bit(path, at * 8 + damaged.random.randrange(8))
        started = damaged.try_start()
        if isinstance(started, Machine):
            end = started.recovered.end
            damaged.history.restarted(end, checks.walk_log(damaged.image, ROOT, end))
        assert holds(before, log_of(damaged.image)), f"seed {seed}: {path}: the log was changed"
