"""One seeded run: starts, work, power cuts; after every start everything is checked.

The same seed gives the same run, operation by operation. A failure prints the seed and the command
that repeats it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from random import Random
from typing import Final, NamedTuple

from shared.files.disk import write_atomically
from tests.simulation import checks
from tests.simulation.history import History, Violation
from tests.simulation.machine import ROOT, Log, Machine
from tests.simulation.schedule import (
    Ending,
    Step,
    Tampering,
    draw_batch,
    draw_batch_topics,
    draw_ending,
    draw_scale,
    draw_step,
    draw_tampering,
)
from tests.support.kill_points import killed_at
from tests.support.sim_disk import SimCrash, SimDisk
from tidemark.errors import DiskFull, FileNotReady, FlushFailed, StoreError
from tidemark.offsets import Queue

LOOKUPS_MAX: Final = 64
"""Maximum number of results of one query of the index."""


class Outcome(NamedTuple):
    """Counts of a run without a violation."""

    starts: int
    power_cuts: int
    kills: int
    crashes_inside: int
    """Ends in the middle of an operation or between two lines."""
    tampered: int
    """Starts with a derived file missing, damaged or old."""
    acked: int
    lost: int
    """Messages sent but never acked at ``disk``, and lost."""
    operations: int


class SeedFailed(AssertionError):
    """A run broke a promise; the message has the command that repeats it."""


def run_seed(seed: int, fault: str = "") -> Outcome:
    """Run one seed. Raises SeedFailed. fault: only a name for the command that repeats it."""
    run = Run(seed)
    try:
        return run.run()
    except (Exception, SimCrash) as error:
        again = f".venv/bin/python -m tests.simulation {seed}" + (
            f" --fault {fault}" if fault else ""
        )
        raise SeedFailed(
            f"seed {seed}, start {run.starts}, {run.doing}: {type(error).__name__}: {error}\n"
            f"again: {again}"
        ) from error


class _Printed(list[str]):
    """A trace that is read while it is written."""

    def append(self, line: str) -> None:
        print(line)


def numbers(machine: Machine) -> dict[Queue, int]:
    """The next queue offset of each queue with messages: an empty one may be known or not."""
    return {queue: offset for queue, offset in machine.next_queue_offsets.items() if offset}


class Run:
    """One seed's world: a disk, its history, and the node that lives on it."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        scale = draw_scale(self.random)
        self.scale = scale._replace(batch_topics=draw_batch_topics(seed, scale.topics))
        self.disk = SimDisk(Random(self.random.getrandbits(64)))
        self.disk.check_reserved = True
        self.disk.whole_sync_files_min = self.random.choice((1, 3, 1000))
        self.disk.make_directory(ROOT)
        self.history = History()
        self.boot = 1
        self.starts = self.power_cuts = self.kills = self.crashes = 0
        self.operations = self.serial = self.tampered = 0
        self.old_checkpoint: bytes | None = None
        self.units_were_lost = False
        """Derived files were removed, and no dispatched mark has been published since."""
        self.doing = "nothing yet"

    def trace(self) -> None:
        """Print every operation of the disk as it comes, in this start and all later ones."""
        self.disk.trace = _Printed()

    def run(self) -> Outcome:
        """Run all rounds. Raises Violation, or whatever the code under test raises."""
        for _ in range(self.scale.rounds):
            self._plan_crash(120)
            ending = draw_ending(self.random)
            try:
                machine = self.start()
                self._plan_crash(200)
                ending = self.work(machine) or ending
                if ending is Ending.STOP:
                    self.doing = "stopping"
                    self.disk.capacity_bytes = None
                    machine.stop()
            except SimCrash:
                self.crashes += 1
                ending = Ending.KILL if ending is Ending.KILL else Ending.POWER_CUT
            self.end(ending)
        self.disk.crash_at = None
        machine = self.start()
        self.catch_up(machine, rebuild=True)
        return Outcome(
            self.starts,
            self.power_cuts,
            self.kills,
            self.crashes,
            self.tampered,
            len(self.history.sent),
            self.history.lost_count,
            self.operations + self.disk.operations,
        )

    # A start and what must hold after it

    def start(self) -> Machine:
        """Recover, resume, check everything. Raises SimCrash if a crash was planned inside."""
        self.starts += 1
        self.doing = "recovering"
        history, disk = self.history, self.disk
        machine = Machine(disk, self.scale.config, self.scale.log, history, self.boot)
        end = machine.recovered.end
        self.doing = "checking the recovered log"
        history.restarted(end, checks.walk_log(disk, ROOT, end))
        self._check_numbers(machine)
        checks.check_nothing_behind(disk, ROOT, end)
        checks.check_durable(disk, ROOT, history, end)
        self.doing = "resuming dispatch"
        machine.start_reput()
        self._check_reput(machine, exact=False)
        if self.random.random() < 0.6:
            self.catch_up(machine, rebuild=self.random.random() < 0.3)
        return machine

    def catch_up(self, machine: Machine, *, rebuild: bool) -> None:
        """Dispatch to the end; queues and index must then correspond exactly to the log."""
        self.doing = "catching up"
        machine.dispatch_all()
        end = machine.appender.flushed
        if machine.dispatched < end:
            raise Violation(f"dispatch stopped at {machine.dispatched}, the log ends at {end}")
        self._check_reput(machine, exact=True)
        self.doing = "reading the queues"
        for (topic, queue), messages in self.history.queues().items():
            units = machine.read_queue(topic, queue)
            if units != [(sent.queue_offset, sent.unit) for sent in messages]:
                raise Violation(f"a reader sees {len(units)} of {len(messages)} in {topic}/{queue}")
        self.doing = "looking up keys"
        owed = self.history.keys()
        found = machine.lookups(owed)
        for key, expected in owed.items():
            if found[key] != expected[-LOOKUPS_MAX:]:
                raise Violation(f"key {key} finds {found[key]}, not {expected}")
        if rebuild:
            self._compare_with_rebuilt(machine, found)

    def _check_numbers(self, machine: Machine) -> None:
        found, expected = numbers(machine), self.history.next_queue_offsets()
        if found != expected:
            raise Violation(f"next queue offsets {found} are not {expected}")

    def _check_reput(self, machine: Machine, *, exact: bool) -> None:
        visible_after = self.scale.config.visible_after
        at = checks.FLUSHED_AT if visible_after == "flushed" else checks.WRITTEN_AT
        visible = checks.slot(self.disk, ROOT, at)
        if machine.dispatched > visible:
            raise Violation(f"dispatched {machine.dispatched} is beyond {visible_after} {visible}")
        checks.check_units(self.disk, ROOT, self.history, machine.dispatched, exact=exact)
        if self.disk.unreserved_stores:
            raise Violation(f"stored without blocks: {self.disk.unreserved_stores[:3]}")

    def _compare_with_rebuilt(
        self, machine: Machine, lookups: dict[tuple[str, str], list[int]]
    ) -> None:
        self.doing = "rebuilding from the log"
        disk = self.disk.copy()
        disk.crash_at, disk.capacity_bytes, disk.write_back_chance = None, None, 0.0
        for name in (*checks.QUEUES, "index", "checkpoint"):
            disk.remove_tree(ROOT / name)
        other = Machine(disk, self.scale.config, Log(), History(), self.boot)
        other.start_reput()
        other.dispatch_all()
        mine, anew = checks.queue_images(self.disk, ROOT), checks.queue_images(disk, ROOT)
        if mine != anew:
            differing = sorted(set(mine.items()) ^ set(anew.items()))[0][0]
            raise Violation(f"{differing} differs from a full rebuild")
        if numbers(other) != numbers(machine):
            raise Violation("a full rebuild numbers queues differently")
        if other.lookups(lookups) != lookups:
            raise Violation("keys find something else in a rebuilt index")

    # Work and its end

    def work(self, machine: Machine) -> Ending | None:
        """Take random steps. Returns how the start ended if a step ended it, None if time was
        up."""
        for _ in range(self.random.randrange(self.scale.steps_max)):
            step = draw_step(self.random, self.scale)
            self.doing = step.value
            self.disk.now_ms += self.random.choice((0, 1, 700, 5000))
            if self.scale.fails_syncs:
                self.disk.failing_sync = lambda path: self.random.random() < 0.05
            try:
                with self._maybe_killed():
                    self.apply(machine, step)
            except (DiskFull, FileNotReady):
                if self.disk.capacity_bytes is None:
                    raise
            except (FlushFailed, OSError, StoreError):
                if not self.scale.fails_syncs:
                    raise
                return self.random.choice((Ending.KILL, Ending.POWER_CUT))
            finally:
                self.disk.failing_sync = lambda path: False
                self.disk.after_sync = None
        return None

    def apply(self, machine: Machine, step: Step) -> None:
        """Take one step and tell the history what the outside world has seen of it."""
        match step:
            case Step.SEND:
                self.serial += 1
                machine.send(draw_batch(self.random, self.scale, self.serial))
            case Step.COMMIT:
                machine.commit()
            case Step.FLUSH:
                # The flusher has a thread of its own: appends go on while it waits for the disk.
                if self.random.random() < 0.3:
                    meanwhile = self.random.choice((Step.SEND, Step.SEND, Step.COMMIT))
                    self.disk.after_sync = lambda: self._meanwhile(machine, meanwhile)
                machine.flush()
                self.disk.after_sync = None  # there may have been nothing to sync
            case Step.DISPATCH:
                machine.dispatch(self.random.choice((200, 2000, 1 << 20)))
                if self.scale.config.visible_after == "flushed":
                    self.history.ack(machine.dispatched)
            case Step.SYNC:
                if self.random.random() < 0.3:
                    self.disk.after_sync = lambda: self._meanwhile(machine, Step.DISPATCH)
                machine.sync()
                self.disk.after_sync = None
                if machine.sync_covers_all:
                    self.units_were_lost = False
            case Step.PREPARE:
                machine.prepare_next()
            case Step.RESTART_REPUT:
                before = machine.dispatched
                machine.start_reput()
                # Missing queues are rebuilt; until then they are visible up to their present end.
                if machine.dispatched < before and not self.units_were_lost:
                    raise Violation(f"dispatched went back from {before} to {machine.dispatched}")
                self._check_reput(machine, exact=False)
            case Step.RESTART_BROKER:
                end = machine.restart_broker()
                self.history.restarted(end, checks.walk_log(self.disk, ROOT, end))
                self._check_numbers(machine)
                checks.check_durable(self.disk, ROOT, self.history, end)
            case Step.FILL_DISK:
                used = 1 << 50
                self.disk.capacity_bytes = used - self.disk.free_bytes(ROOT) + 4096
            case Step.FREE_DISK:
                self.disk.capacity_bytes = None

    def _meanwhile(self, machine: Machine, step: Step) -> None:
        """Run a step of another thread: its errors are not for the caller to handle."""
        try:
            self.apply(machine, step)
        except (DiskFull, FileNotReady):
            if self.disk.capacity_bytes is None:
                raise

    @contextlib.contextmanager
    def _maybe_killed(self) -> Iterator[None]:
        """Sometimes cut the step between two lines, where no operation is."""
        if self.random.random() >= 0.04:
            yield
            return
        with killed_at(self.random.randint(1, 400), at_kill=self.disk.crash):
            yield

    def _plan_crash(self, within: int) -> None:
        self.disk.crash_at = (
            self.disk.operations + self.random.randint(1, within)
            if self.random.random() < 0.35
            else None
        )

    def end(self, ending: Ending) -> None:
        """End the processes; after a power cut, some unsynced data is lost."""
        self.doing = ending.value
        self.operations += self.disk.operations
        if ending is Ending.POWER_CUT:
            self.power_cuts += 1
            self.boot += 1
            self.history.power_cut()
            self.disk = self.disk.power_cut(self.random)
            if not self.units_were_lost:
                checks.check_durable_units(self.disk, ROOT, self.history)
        else:
            self.kills += ending is Ending.KILL
            self.disk = self.disk.copy()
        self.disk.capacity_bytes = None
        self.disk.check_reserved = True
        if self.random.random() < 0.15:
            self._tamper(draw_tampering(self.random))
        if self.random.random() < 0.3:
            self.old_checkpoint = self.disk.peek(ROOT / "checkpoint")

    def _tamper(self, what: Tampering) -> None:
        """Remove or damage derived files, which can be rebuilt from the log."""
        self.doing = f"tampering: {what.value}"
        self.tampered += 1
        self.units_were_lost = True
        disk = self.disk
        derived = [path for path, _ in disk.files() if path.parts[2] in (*checks.QUEUES, "index")]
        match what:
            case Tampering.NO_QUEUES:
                for name in checks.QUEUES:
                    disk.remove_tree(ROOT / name)
            case Tampering.NO_INDEX:
                disk.remove_tree(ROOT / "index")
            case Tampering.NO_FILE | Tampering.EMPTY_FILE if derived:
                path = self.random.choice(derived)
                disk.remove_tree(path)
                if what is Tampering.EMPTY_FILE:
                    disk.create(path, 0, reserve=False)
                    disk.sync_directory(path.parent)
            case Tampering.NO_QUEUE if derived:
                disk.remove_tree(self.random.choice(derived).parent)
            case Tampering.NO_CHECKPOINT:
                disk.remove_tree(ROOT / "checkpoint")
            case Tampering.OLD_CHECKPOINT if self.old_checkpoint is not None:
                disk.remove_tree(ROOT / "checkpoint")
                write_atomically(disk, ROOT / "checkpoint", self.old_checkpoint)
            case _:
                self.tampered -= 1
