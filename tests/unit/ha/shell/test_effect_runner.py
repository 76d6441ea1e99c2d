"""The effect runner: events one at a time, effects in their order, nothing after a bug."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import cast

import pytest

from services.ha.core import effects as wanted
from services.ha.core.effects import DiskEffect, Effect
from services.ha.core.events import Done, Event, LeaseAnswered, LeaseOutcome, LinkDown, Tick
from services.ha.core.replica import Replica
from services.ha.lease.interface import LeaseStore, Outcome
from services.ha.shell import hooks
from services.ha.shell.effect_runner import EffectRunner, EndedByReplica
from services.ha.shell.lease_client import LeaseClient
from services.ha.shell.links import Links
from services.ha.shell.page_writer import PageWriter
from services.ha.shell.replica_disk import ReplicaDisk
from services.ha.wire.frames import Frame, FrameType
from shared.files.positions import Positions
from shared.runtime.doorbell import Doorbell
from shared.runtime.health import Health
from tests.support.still_clock import StillClock, until
from tidemark.formats.checkpoint import NodeRole, Slot

BOOT = (7, 9)
STATUS = Frame(FrameType.STATUS, 1, b"")


class Page:
    """Slots, in the order of their publication."""

    def __init__(self, said: list[str]) -> None:
        self.slots: dict[Slot, int] = {}
        self._said = said

    def get(self, slot: Slot) -> int:
        return self.slots.get(slot, 0)

    def publish(self, slot: Slot, value: int) -> None:
        self.slots[slot] = value
        self._said.append(f"{slot.name}={value}")


class World:
    """Everything that an effect runner uses; records the calls."""

    def __init__(self, decide: Callable[[Event], list[Effect]]) -> None:
        self.said: list[str] = []
        self.handled: list[Event] = []
        self.replies: list[wanted.Reply] = []
        self.page = Page(self.said)
        self.clock = StillClock()
        self.health = Health(self.clock)
        self.answer: Outcome | Exception | None = None
        self.refuses = "no rights"
        self._decide = decide
        self.runner = EffectRunner(
            cast(Replica, self),
            self.clock,
            PageWriter(cast(Positions, self.page), BOOT, self.clock, cast(Doorbell, self)),
            cast(Links, self),
            cast(ReplicaDisk, self),
            LeaseClient(cast(LeaseStore, self), request_timeout_ms=50),
            self.health,
            self.replies.append,
        )

    def handle(self, event: Event, now_ms: int) -> list[Effect]:
        self.handled.append(event)
        return self._decide(event)

    def ring(self, service: str) -> bool:
        self.said.append(f"ring {service}")
        return True

    def disk_changed(self, done: Done) -> None:
        self.said.append(f"done {done.token}")

    def connect(self, name: str) -> None:
        self.said.append(f"connect {name}")

    def send(self, number: int, frame: Frame) -> None:
        self.said.append(f"send {number}")

    def stream(self, number: int, frame: Frame, offset: int, size: int) -> None:
        self.said.append(f"stream {number} {offset}+{size}")

    def close_link(self, number: int, reason: str) -> None:
        self.said.append(f"close {number}")
        self.runner.post(LinkDown(number, "n1", reason))

    def carry_out(self, effect: DiskEffect) -> None:
        self.said.append(type(effect).__name__)

    async def announce(self, role: str) -> str:
        self.said.append(f"announce {role}")
        return "" if role == "master" else self.refuses

    async def get(self) -> Outcome:
        if self.answer is None:
            await asyncio.Event().wait()
        if isinstance(self.answer, Exception):
            raise self.answer
        return cast(Outcome, self.answer)


def on_tick(*effects: Effect) -> Callable[[Event], list[Effect]]:
    return lambda event: list(effects) if isinstance(event, Tick) else []


async def test_effects_are_carried_out_in_their_order() -> None:
    world = World(
        on_tick(
            wanted.Publish(((Slot.CONFIRM, 5), (Slot.ROLE, NodeRole.MASTER))),
            wanted.Send(3, STATUS),
            wanted.Stream(3, STATUS, 100, 50),
            wanted.PersistConfirm(5),
            wanted.Connect("n1"),
        )
    )
    world.runner.post(Tick())
    assert world.said == [
        "CONFIRM=5",
        "ROLE=3",
        "ring broker",
        "ring reput",
        "send 3",
        "stream 3 100+50",
        "PersistConfirm",
        "connect n1",
    ]


async def test_a_named_step_comes_before_its_effect() -> None:
    release, master = wanted.ReleaseAppendLock(1), wanted.Publish(((Slot.ROLE, NodeRole.MASTER),))
    world = World(on_tick(release, wanted.Grant(8, 99, 1000), master))
    hooks.install(world.said.append)
    try:
        world.runner.post(Tick())
    finally:
        hooks.install(None)
    said = world.said
    assert said.index("promote-6") < said.index("ReleaseAppendLock") < said.index("promote-7")
    assert said.index("promote-7") < said.index("EPOCH=8") < said.index("promote-10")
    assert said.index("promote-10") < said.index("ROLE=3")


async def test_a_role_is_shown_after_the_fact(caplog: pytest.LogCaptureFixture) -> None:
    roles = iter((NodeRole.MASTER, NodeRole.FOLLOWER))
    world = World(lambda event: [wanted.Publish(((Slot.ROLE, next(roles)),))])
    world.runner.post(Tick())
    await until(lambda: "announce master" in world.said)
    assert world.said.index("ROLE=3") < world.said.index("announce master")
    world.runner.post(Tick())
    await until(lambda: "announce slave" in world.said)
    await until(lambda: "could not be shown" in caplog.text)


async def test_a_role_that_could_not_be_shown_is_shown_later(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A master that was cut off stepped down and could not announce it. Its pod kept the label of a
    master when the network healed: the Service of the master led to two pods.
    """
    monkeypatch.setattr("services.ha.shell.lease_client.ANNOUNCE_AGAIN_S", 0.001)
    world = World(on_tick(wanted.Publish(((Slot.ROLE, NodeRole.FOLLOWER),))))
    world.runner.post(Tick())
    await until(lambda: world.said.count("announce slave") > 3)
    assert caplog.text.count("could not be shown") == 1
    world.refuses = ""
    said = world.said.count("announce slave")
    await until(lambda: world.said.count("announce slave") > said)
    said = world.said.count("announce slave")
    for _ in range(20):
        await asyncio.sleep(0.001)
    assert world.said.count("announce slave") <= said + 1


async def test_a_shown_role_is_shown_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slave got no answer to its announcement and became the master. The first request reached
    the API server after the second one: the Service of the master led to no pod.
    """
    monkeypatch.setattr("services.ha.shell.lease_client.ANNOUNCE_PAUSE_MAX_S", 0.001)
    world = World(on_tick(wanted.Publish(((Slot.ROLE, NodeRole.MASTER),))))
    world.runner.post(Tick())
    await until(lambda: world.said.count("announce master") > 3)


async def test_a_new_role_does_not_wait_for_the_next_repetition() -> None:
    roles = iter((NodeRole.FOLLOWER, NodeRole.MASTER))
    world = World(lambda event: [wanted.Publish(((Slot.ROLE, next(roles)),))])
    world.refuses = ""
    world.runner.post(Tick())
    await until(lambda: "announce slave" in world.said)
    world.runner.post(Tick())
    await until(lambda: "announce master" in world.said)


async def test_an_event_that_an_effect_leads_to_waits_until_all_effects_are_carried_out() -> None:
    world = World(on_tick(wanted.Close(4, "over"), wanted.Send(5, STATUS)))
    world.runner.post(Tick())
    assert world.said == ["close 4", "send 5"]
    assert world.handled == [Tick(), LinkDown(4, "n1", "over")]


async def test_a_grant_is_published_whole_and_a_fence_ends_it() -> None:
    world = World(on_tick(wanted.Grant(8, 99, 1000)))
    world.runner.post(Tick())
    slots = world.page.slots
    assert (slots[Slot.HA_BOOT_ID_HIGH], slots[Slot.HA_BOOT_ID_LOW]) == BOOT
    assert (slots[Slot.EPOCH], slots[Slot.GRANTED_TO], slots[Slot.FENCED]) == (8, 99, 0)
    assert world.said[-2:] == ["ring broker", "ring reput"]
    world = World(on_tick(wanted.Fence()))
    world.runner.post(Tick())
    assert world.page.slots[Slot.FENCED] == 1
    assert "ring broker" in world.said


async def test_a_bug_in_a_decision_ends_the_process_and_nothing_is_carried_out_after_it() -> None:
    def decide(event: Event) -> list[Effect]:
        raise KeyError("a bug")

    world = World(decide)
    world.runner.post(Tick())
    world.runner.post(Tick())
    assert len(world.handled) == 1
    with pytest.raises(KeyError):
        await world.runner.run(asyncio.Event())


async def test_the_replica_can_end_the_process_by_a_code() -> None:
    world = World(on_tick(wanted.Ended("resync-needed", "Start again."), wanted.Send(1, STATUS)))
    world.runner.post(Tick())
    assert world.said == []
    with pytest.raises(EndedByReplica, match=r"\[resync-needed\] Start again") as caught:
        await world.runner.run(asyncio.Event())
    assert caught.value.code == "resync-needed"


async def test_a_thread_posts_on_the_loop() -> None:
    world = World(lambda event: [])
    await asyncio.to_thread(world.runner.post_from_thread, Done(4))
    await until(lambda: world.handled)
    assert world.handled == [Done(4)]
    assert world.said == ["done 4"]


async def until_handled(world: World, count: int) -> Event:
    await until(lambda: len(world.handled) >= count)
    return world.handled[count - 1]


async def test_a_request_to_the_lease_is_answered_once() -> None:
    world = World(on_tick(wanted.LeaseGet(12)))
    world.answer = Outcome(LeaseOutcome.ABSENT)
    world.runner.post(Tick())
    answer = await until_handled(world, 2)
    assert answer == LeaseAnswered(12, LeaseOutcome.ABSENT)


@pytest.mark.parametrize("answer", [None, RuntimeError("a client library's own")])
async def test_no_answer_and_an_error_of_a_client_are_unknown_outcomes(
    answer: Exception | None, caplog: pytest.LogCaptureFixture
) -> None:
    world = World(on_tick(wanted.LeaseGet(12)))
    world.answer = answer
    world.runner.post(Tick())
    answered = await until_handled(world, 2)
    assert isinstance(answered, LeaseAnswered)
    assert answered.outcome is LeaseOutcome.UNKNOWN
    assert answered.reason == (
        "no answer within 50 ms"
        if answer is None
        else "the request failed for a reason unknown to ha; its log has it as lease-error"
    )


async def test_a_note_is_a_line_and_an_alarm_until_it_is_cleared(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    notes = iter((True, False))

    def decide(event: Event) -> list[Effect]:
        return [wanted.Note(logging.INFO, "lease-gone", "It is gone.", {"name": 1}, next(notes))]

    world = World(decide)
    world.runner.post(Tick())
    assert [reason.code for reason in world.health.reasons] == ["lease-gone"]
    world.runner.post(Tick())
    assert not world.health.reasons
    assert [line.message for line in caplog.records] == ["It is gone."] * 2


async def test_nothing_is_handled_after_the_end() -> None:
    world, stop = World(lambda event: []), asyncio.Event()
    stop.set()
    await world.runner.run(stop)
    world.runner.post(Tick())
    assert not world.handled


async def test_reput_is_rung_for_what_is_confirmed_however_soon_behind_another_ring() -> None:
    effects = iter(
        wanted.Publish(((slot, 1),))
        for slot in (Slot.LEASE_DEADLINE, Slot.CONFIRM, Slot.CONFIRM, Slot.ROLE)
    )
    world = World(lambda event: [next(effects)])
    rung = []
    for _ in range(4):
        world.runner.post(Tick())
        rung.append("ring reput" in world.said)
        world.said.clear()
    # The third comes while reput works, or polls for more, because of the second.
    assert rung == [False, True, False, True]


async def test_the_broker_is_rung_for_the_confirm_offset_only_while_it_has_a_grant() -> None:
    confirmed = wanted.Publish(((Slot.CONFIRM, 1),))
    effects = iter((confirmed, wanted.Grant(8, 99, 1000), confirmed, wanted.Fence(), confirmed))
    world = World(lambda event: [next(effects)])
    rung = []
    for _ in range(5):
        world.runner.post(Tick())
        rung.append("ring broker" in world.said)
        world.said.clear()
    assert rung == [False, True, True, True, False]


async def test_a_halted_node_is_not_shown_as_the_master() -> None:
    roles = iter((NodeRole.MASTER, NodeRole.VOID, NodeRole.HALTED))
    world = World(lambda event: [wanted.Publish(((Slot.ROLE, next(roles)),))])
    world.refuses = ""
    for _ in range(3):
        world.runner.post(Tick())
        await until(lambda: any(said.startswith("announce") for said in world.said))
    await until(lambda: "announce slave" in world.said)
