"""Drills in which a master is stopped and continued, or its clocks jump."""

from __future__ import annotations

import asyncio
import signal
import time
from collections import Counter
from typing import Final

from drills.faults import Fault
from drills.finding import Known
from drills.group import DrillNode
from drills.node_group import slot
from drills.sends import patient_send, patient_sends
from drills.stage import TWO, Needs, Stage, drill
from tidemark.formats.checkpoint import Slot

HOUR_MS: Final = 3_600_000
SLOW_SYNC_MS: Final = 500
PATIENT: Final = 16
"""Number of senders that wait for their response while the master is stopped."""
SUSPENDED_MS: Final = 60_000
PROBE_KEY: Final = "9.0"
"""Key of the message that the drill itself sends."""
SERVICES: Final = ("broker", "reput", "ha")
SHORT_STALL_S: Final = 1.0
STALL_S: Final = 2.6
BETWEEN_S: Final = 0.4
REPEATS: Final = 12
LONG_STALLS_S: Final = (10, 60, 600)


@drill(
    "4", "the master is stopped (SIGSTOP) for two lease times, and goes on", TWO, 6.0, short=True
)
async def pause_master(stage: Stage) -> None:
    """Expect every message acked after the pause to be in the successor's log."""
    master, *slaves = await stage.roles(100)
    # Half of the messages are appended but not acked when the master stops, because the slave's
    # disk is slow. The other half are sent later and wait in the socket buffers of the master.
    node, slave = stage.group.nodes[master], stage.group.nodes[slaves[0]]
    slave.faults.set(Fault.SYNC_DELAY_MS, SLOW_SYNC_MS)
    await stage.pause_load()
    end = slot(node.store_dir, Slot.WRITTEN)
    sending = patient_sends(stage, master, PATIENT // 2)
    await stage.finder.until(
        lambda _: slot(node.store_dir, Slot.WRITTEN) > end, "a send to be appended", 10
    )
    at = stage.mark()
    stage.group.pause(master)
    slave.faults.set(Fault.SYNC_DELAY_MS, 0)
    stage.load.resume()
    sending += patient_sends(stage, master, PATIENT // 2)
    await stage.successor(master, 20)
    await stage.acked_again(20)
    await asyncio.sleep(max(0.0, at + 2 * stage.lease_s - time.monotonic()))
    stage.group.resume(master)
    resumed = time.monotonic()
    await stage.in_sync()
    stage.note(f"{master} is back in the set {time.monotonic() - resumed:.1f} s after SIGCONT")
    outcomes = Counter(await asyncio.gather(*sending))
    listed = ", ".join(f"{outcome} {count}" for outcome, count in outcomes.items())
    stage.note(f"{PATIENT} senders that waited for the old master's answer: {listed}")


@drill("5", "the master is stopped between the confirmation of a send and its answer", TWO, 6.0)
async def pause_before_answer(stage: Stage) -> None:
    """Expect the late ack to be valid because the record is in the successor's log."""
    # A slave that was stopped in the drill before takes over later than one that was not.
    await stage.target()
    master, *_ = await stage.roles(50)
    await stage.pause_load()
    stage.group.nodes[master].faults.set(Fault.STOP_BEFORE_ANSWER, 1)
    sending = asyncio.create_task(patient_send(stage, master, PROBE_KEY))
    broker = stage.group.nodes[master].processes["broker"]
    await stage.finder.until(lambda _: broker.is_paused, "the broker to stop before an answer", 5)
    stage.group.pause(master)
    stage.load.resume()
    stage.mark()
    await stage.successor(master, 20)
    await stage.acked_again(20)
    await asyncio.sleep(stage.lease_s)
    stage.group.resume(master)
    outcome = await sending
    stage.note(f"the send that was stopped before its answer ended as {outcome}")


@drill("14", "the master's wall clock is set an hour ahead, then an hour back", TWO, 1.5)
async def wall_clock_steps(stage: Stage) -> None:
    """Expect no effect."""
    master, epoch = await stage.master(), stage.epoch
    stage.mark()
    for step in (HOUR_MS, 0, -HOUR_MS, 0):
        stage.group.nodes[master].faults.set(Fault.WALL_STEP_MS, step)
        await stage.load.acked(100)
    stage.check_epoch(epoch)


@drill(
    "15",
    "the master's machine sleeps for a minute, by its boot-time clock",
    Needs(nodes=2, fresh=True),
    6.0,
)
async def suspend_master(stage: Stage) -> None:
    """Expect the master to resume after its deadline and not to ack until it has a lease again."""
    master, epoch = await stage.master(), stage.epoch
    await stage.load.acked(50)
    at = stage.mark()
    stage.group.pause(master)
    stage.group.nodes[master].faults.set(Fault.BOOT_STEP_MS, SUSPENDED_MS)
    await asyncio.sleep(stage.lease_s / 3)
    stage.group.resume(master)
    await stage.acked_again(20)
    stage.check(stage.epoch > epoch, f"it goes on in epoch {epoch} with a lease that has run out")
    stage.note(
        f"{await stage.master()} is master in epoch {stage.epoch}, "
        f"{time.monotonic() - at:.1f} s after the machine fell asleep"
    )


@drill(
    "16",
    "the loop of the master's ha, then of its broker, stands still past the deadline",
    TWO,
    7.0,
)
async def stalled_loop(stage: Stage) -> None:
    """Expect no acks after the deadline: a blocked event loop must not keep a lease."""
    stall_s = stage.fenced_s + 2.0
    for service in ("ha", "broker"):
        # After a stall, a node prefers another master for a lease time; wait until that is over.
        await stage.target()
        master = await stage.master()
        node = stage.group.nodes[master]
        await stage.load.acked(50)
        node.faults.set(Fault.STALL_MS, int(stall_s * 1000))
        at = stage.mark()
        node.processes[service].send_signal(signal.SIGUSR1)
        began = await _stall_began(stage, node)
        # Until the signal is handled, the service may still renew the lease.
        deadline = time.monotonic() + stage.fenced_s
        await asyncio.sleep(stall_s)
        acks = stage.ledger.acked_by(master, at)
        in_stall = [ack for ack in acks if ack.ended_at < began + stall_s]
        stage.check_none_late(in_stall, deadline, f"by {master} after its deadline")
        await stage.acked_again(20)
        stage.note(
            f"{service} of {master} stood still for {stall_s:.1f} s: {await stage.master()} is "
            f"master in epoch {stage.epoch}"
        )
        await stage.in_sync()


async def _stall_began(stage: Stage, node: DrillNode) -> float:
    """Wait for the ordered stall; return a time shortly before it began [time.monotonic]."""
    before = time.monotonic()

    def stands(_: Known) -> bool:
        nonlocal before
        now = time.monotonic()
        if not node.faults.get(Fault.STALL_MS):
            return True
        before = now
        return False

    await stage.finder.until(stands, "the loop to stand still", 5)
    return before


@drill(
    "53",
    "broker, reput and ha of the master are stopped for a second each, one after another",
    TWO,
    3.0,
    short=True,
)
async def short_stalls(stage: Stage) -> None:
    """Expect no new epoch for a stall that is shorter than a lease."""
    master, epoch = await stage.master(), stage.epoch
    stage.mark()
    for service in SERVICES:
        await stage.load.acked(50)
        before, began = stage.epoch, time.monotonic()
        stage.group.pause(master, service)
        await stage.pass_time(SHORT_STALL_S)
        stage.group.resume(master, service)
        paused_s = time.monotonic() - began
        await stage.acked_again(20)
        if stage.epoch > before:
            # A new epoch is valid only if a slow machine made the stall as long as a lease.
            held_s = stage.finder.pace.held_back_s(began, time.monotonic(), master)
            stage.check(
                paused_s + held_s >= stage.fenced_s,
                f"the epoch went from {before} to {stage.epoch}: {service} was stopped for "
                f"{paused_s:.1f} s, and the machine held it back for {held_s:.1f} s",
            )
            master = await stage.master()
    stage.note(f"epoch {epoch} before, {stage.epoch} afterwards")


@drill(
    "54",
    "reput of the master is stopped, and goes on a lease time after another is master",
    TWO,
    6.0,
    short=True,
)
async def hung_reput(stage: Stage) -> None:
    """Expect another master; a switchover back works as soon as the reput runs again."""
    master, *_ = await stage.roles(50)
    stage.mark()
    stage.group.pause(master, "reput")
    new = await stage.successor(master, 20)
    await stage.acked_again(20)
    stage.judge_until_now()
    status, answer = await stage.group.command(new, "switchover", to=master)
    stage.check(status != 200, f"a switch to the node whose reput hangs was answered {answer}")
    await stage.pass_time(stage.lease_s)
    await stage.check_master(new)
    stage.group.resume(master, "reput")
    await stage.in_sync()
    # The other node learns it with a heartbeat; stalls are forgotten only after eight leases.
    await stage.ordered(new, "switchover", stage.lease_s, to=master)
    await stage.acked_again(20)
    stage.check(await stage.master() == master, f"{master} handed the lease back")


@drill(
    "55",
    f"broker, reput and ha of the master are stopped {REPEATS} times for {STALL_S} s each",
    TWO,
    6.0,
)
async def repeated_stalls(stage: Stage) -> None:
    """Expect the stalls to add up: each is shorter than a lease, but the node hands over once.

    Before this rule the master kept its lease, and only 71 sends were acked in 33 s.
    """
    for service in SERVICES:
        await stage.in_sync()
        await stage.load.acked(50)
        master, epoch, began = await stage.master(), stage.epoch, stage.mark()
        for _ in range(REPEATS):
            stage.group.pause(master, service)
            await stage.pass_time(STALL_S)
            stage.group.resume(master, service)
            await stage.pass_time(BETWEEN_S)
        half = began + (time.monotonic() - began) / 2
        acked = sum(request.ended_at >= half for request in stage.ledger.acks())
        terms = stage.epoch - epoch
        stage.gap_since(half)
        stage.note(f"{service}: {terms} new epochs, {acked} requests acked in the second half")
        stage.check(0 < terms <= 3, f"stalls of {service} led to {terms} new epochs")
        await stage.pass_time(2 * 4 * stage.lease_s)  # until the stalls are forgotten


def _long_stalls(number: str, service: str) -> None:
    @drill(
        number,
        f"{service} of the master is stopped for {', '.join(map(str, LONG_STALLS_S))} s",
        TWO,
        6.0,
        name=f"long-stalls-{service}",
        long=True,
    )
    async def long_stalls(stage: Stage) -> None:
        """Expect another master during the stall, and no change when the service continues."""
        for stall_s in LONG_STALLS_S:
            await stage.in_sync()
            await stage.load.acked(50)
            master, at = await stage.master(), stage.mark()
            stage.group.pause(master, service)
            new = await stage.successor(master, 20)
            await stage.acked_again(20)
            epoch = stage.epoch
            await stage.pass_time(max(0.0, at + stall_s - time.monotonic()))
            stage.group.resume(master, service)
            await stage.in_sync()
            await stage.pass_time(2 * stage.lease_s)
            await stage.check_master(new)
            stage.check_epoch(epoch)
            stage.note(f"{stall_s} s: {stage.gap_since(at):.1f} s without an ack")


for _number, _service in (("56a", "broker"), ("56b", "reput"), ("56c", "ha")):
    _long_stalls(_number, _service)
