"""Stalls of services: what counts as one, and how a group reacts."""

from __future__ import annotations

from random import Random

import pytest

from services.ha.core.events import Command, NodeSnapshot
from services.ha.core.liveness import FORGIVEN_PER_MS, Liveness, Stalls
from services.ha.core.switch_orders import SWITCH_MS_MAX
from services.ha.core.switch_targets import fit_targets
from services.ha.lease.value import Member
from shared.cluster.time_rules import DEFAULT, LOCAL, LONG, TimeRules
from tests.support.for_each import for_each
from tests.unit.ha.group import Group, grown, lease_of, order
from tidemark.formats.checkpoint import Slot, Trouble

PROFILES = [LOCAL, DEFAULT, LONG]
SERVICES = ("broker", "reput", "ha")


def stalled(times: TimeRules, *phases: tuple[int, int]) -> list[bool]:
    """Whether stalls are too many after each (ms of a stall, ms without one afterwards)."""
    stalls, found = Stalls(times), []
    for still_ms, moves_ms in phases:
        for at in range(50, still_ms + 1, 50):
            stalls.note(at, 50)
        found.append(stalls.too_many)
        for _ in range(moves_ms // 50):
            stalls.note(0, 50)
    return [*found, stalls.too_many]


@pytest.mark.parametrize("times", PROFILES)
def test_one_stall_counts_from_a_lease_time_on(times: TimeRules) -> None:
    lease_ms = times.lease_ms
    assert stalled(times, (lease_ms - 50, 100)) == [False, False]
    assert stalled(times, (lease_ms, 100)) == [True, True]


@pytest.mark.parametrize("times", PROFILES)
def test_a_stall_is_over_when_the_service_has_moved_for_several_times_as_long(
    times: TimeRules,
) -> None:
    lease_ms = times.lease_ms
    enough_ms = FORGIVEN_PER_MS * lease_ms
    assert stalled(times, (lease_ms, enough_ms - 100)) == [True, True]
    assert stalled(times, (lease_ms, enough_ms + 100)) == [True, False]
    # Of the longest stall no more than two lease times are remembered.
    assert stalled(times, (20 * lease_ms, 2 * enough_ms + 100)) == [True, False]


@pytest.mark.parametrize("times", PROFILES)
def test_stalls_add_up_where_little_time_is_between_them(times: TimeRules) -> None:
    short_ms = times.lease_ms // 100 * 80
    assert stalled(times, *[(short_ms, short_ms)] * 2) == [False, True, True]
    assert stalled(times, *[(short_ms, FORGIVEN_PER_MS * short_ms)] * 9) == [False] * 10
    # Two late heartbeats are no stall.
    assert stalled(times, *[(times.broker_silent_ms // 2 - 50, 50)] * 99) == [False] * 100


def test_a_service_that_is_gone_has_no_stall_behind_it_when_it_is_back() -> None:
    stalls = Stalls(LOCAL)
    for at in range(50, LOCAL.lease_ms, 50):
        stalls.note(at, 50, alive=False)
        assert not stalls.too_many
    stalls.note(LOCAL.lease_ms, 50, alive=False)
    assert stalls.too_many
    stalls.note(0, 50)
    assert not stalls.too_many


def test_a_process_that_starts_again_does_not_answer_for_the_one_that_hung() -> None:
    # A broker hung for 18 s and was killed by its probe. Two minutes later its node became master,
    # and handed the lease to one that had just come back after a partition.
    stalls = Stalls(LOCAL)
    for at in range(0, 3 * LOCAL.lease_ms, 50):
        stalls.note(at, 50)
    assert stalls.too_many
    stalls.note(3 * LOCAL.lease_ms, 50, alive=False)
    stalls.note(0, 50)
    assert not stalls.too_many


def test_a_service_that_begins_after_ha_has_no_stall_behind_it() -> None:
    liveness = Liveness(LOCAL)
    for at in range(50_000, 60_000, 50):
        liveness.turned(at)
        liveness.observe(snapshot(broker_silent_ms=at, reput_silent_ms=at - 40_000), at)
        assert liveness.stalling == ""
        assert liveness.broker.still_ms == at
    liveness.turned(60_000)
    liveness.observe(snapshot(), 60_000)
    assert (liveness.broker.still_ms, liveness.stalling) == (0, "")


def snapshot(broker_silent_ms: int = 0, reput_silent_ms: int = 0) -> NodeSnapshot:
    return NodeSnapshot(1, broker_silent_ms, 0, 0, 0, 0, reput_silent_ms=reput_silent_ms)


def test_what_was_silent_while_ha_stood_still_is_judged_anew() -> None:
    liveness = Liveness(LOCAL)
    for at in range(0, 1000, 50):
        assert not liveness.turned(at)
        liveness.observe(snapshot(), at)
    woke = 1000 + 2600
    assert liveness.turned(woke)
    liveness.observe(snapshot(broker_silent_ms=2600, reput_silent_ms=2600), woke)
    assert (liveness.broker.still_ms, liveness.reput.still_ms) == (0, 0)
    for at in range(woke + 50, woke + 2001, 50):
        assert not liveness.turned(at)
        liveness.observe(snapshot(broker_silent_ms=2600 + at - woke), at)
    assert (liveness.broker.still_ms, liveness.reput.still_ms) == (2000, 0)


def test_a_heartbeat_of_another_boot_is_no_stall_of_this_start() -> None:
    liveness = Liveness(LOCAL)
    for at in range(0, 1000, 50):
        liveness.turned(at)
        liveness.observe(snapshot(broker_silent_ms=1 << 40), at)
    assert liveness.broker.still_ms == 1 << 40
    liveness.turned(1000)
    liveness.observe(snapshot(), 1000)
    assert (liveness.broker.still_ms, liveness.stalling) == (0, "")


# In a group


def lose_reput(group: Group, name: str, how: str) -> None:
    reput = group[name].reput
    reput.alive, reput.paused = how != "killed", how == "stopped"


@pytest.mark.parametrize("how", ["stopped", "killed"])
def test_a_node_whose_reput_does_not_move_does_not_take_the_lease(how: str) -> None:
    # It took the lease and never opened: reput has to dispatch the epoch's record. Nothing ended
    # the term.
    group = grown()
    lose_reput(group, "b", how)
    group.run(LOCAL.broker_silent_ms + 500)
    group["a"].kill()
    assert group.wait_master(at_most_ms=10_000).name == "c"
    group.until(group.master.open)
    assert lease_of(group).epoch == 2
    group.send_confirmed()


@pytest.mark.parametrize("how", ["stopped", "killed"])
def test_a_node_whose_reput_does_not_move_is_no_target(how: str) -> None:
    group = grown()
    lose_reput(group, "b", how)
    group.run(LOCAL.broker_silent_ms + 500)
    reply = order(group["a"], "switchover", to="b")
    assert not reply.ok
    # At load 37 a switch was refused while the status showed two nodes in sync and no reason.
    reason = "reput is not there, or does not move"
    assert reply.body["detail"] == f"b cannot take over: {reason}. Nothing was done."
    assert reply.body["retriable"] is True
    assert group["a"].status()["nodes"][1]["reason"] == reason
    assert group["a"].status()["nodes"][2]["reason"] is None
    assert order(group["a"], "switchover").ok
    assert group.master.name == "c"


@pytest.mark.parametrize("how", ["stopped", "killed"])
def test_an_order_to_switch_is_answered_when_the_target_takes_sends_or_says_why_not(
    how: str,
) -> None:
    group = grown()
    lose_reput(group, "b", how)  # the master heard otherwise a moment ago
    reply = order(group["a"], "switchover", to="b")
    assert not reply.ok
    assert "the lease was released for b, which is" in reply.body["detail"]
    assert "reput" in reply.body["detail"]
    took_ms = group.until(lambda: group.serves("a") or group.serves("c"), 20_000)
    assert took_ms < SWITCH_MS_MAX + 5 * LOCAL.lease_ms
    assert "stalled-service" in group["b"].context.alarms
    group.send_confirmed()


@pytest.mark.parametrize("service", SERVICES)
def test_an_order_to_switch_to_a_node_that_moves_again_is_taken(service: str) -> None:
    # A switch to it was refused for up to eight lease times after the stall. And the node, made
    # master, would have handed the lease back at once, because of the same stall.
    group = grown()
    group["b"].pause(service)
    group.run(3 * LOCAL.lease_ms)
    assert service == "ha" or not order(group["a"], "switchover", to="b").ok
    group["b"].resume(service)
    group.run(100)
    group.wait_in_sync("a", "b", "c")
    group.run(100)  # the master learns that its write is applied
    assert group["b"].context.trouble == f"{service}_stalls"
    assert order(group["a"], "switchover", to="b", wait_ms=1000).ok
    epoch = lease_of(group).epoch
    group.run(10 * LOCAL.lease_ms)
    assert group.serves("b")
    assert (lease_of(group).epoch, group["b"].context.alarms) == (epoch, {})


# 1. b stalled for three quarters of a lease time, which is no trouble yet; 2. the disk of a was
# full, and a handed over to b without an operator; 3. b, which had forgotten that stall as if it
# had been ordered to lead, stalled as long again, and kept the lease.
def test_an_automatic_hand_over_does_not_clear_the_memory_of_stalls() -> None:
    group = grown(1, ("a", "b"))
    stall_ms = LOCAL.lease_ms * 3 // 4
    group["b"].pause("reput")
    group.run(stall_ms)
    group["b"].resume("reput")
    group.run(100)
    assert group["b"].context.trouble == ""
    group["a"].trouble = (Trouble.DISK_FULL, Trouble.NONE)
    group.until(lambda: group.serves("b"))
    assert group["b"].context.liveness.remembered_ms > stall_ms // 2
    group["b"].pause("reput")
    group.run(stall_ms)
    assert group["b"].context.trouble == "reput_stalls"


def test_an_order_that_names_no_node_prefers_one_that_did_not_stall() -> None:
    group = grown()
    group["b"].pause("reput")
    group.run(3 * LOCAL.lease_ms)
    group["b"].resume("reput")
    group.run(100)
    # No node hands over to it without a command.
    assert [member.node for member in fit(group, ordered=True)] == ["c", "b"]
    assert [member.node for member in fit(group, ordered=False)] == ["c"]
    assert order(group["a"], "switchover", wait_ms=1000).ok
    assert group.master.name == "c"


def test_a_node_that_has_not_said_lately_how_it_is_comes_last() -> None:
    group = grown()
    assert [member.node for member in fit(group, ordered=False)] == ["b", "c"]
    replica = group["a"].replica
    assert replica is not None
    replica.peers.by_node["b"].status_ms = group["a"].context.now_ms - LOCAL.lease_ms
    assert [member.node for member in fit(group, ordered=False)] == ["c", "b"]


def fit(group: Group, *, ordered: bool) -> list[Member]:
    replica = group["a"].replica
    assert replica is not None
    term = replica.leadership.term
    assert term is not None
    return fit_targets(term, replica.peers, ordered=ordered)


def test_a_node_reports_at_once_that_it_can_lead_again() -> None:
    # A switch that was ordered within a heartbeat of it was refused, and a master that was stopped
    # then let its lease expire.
    group = grown(1, ("a", "b"))
    group["b"].kill_broker()
    group.run(LOCAL.heartbeat_ms)
    assert not order(group["a"], "switchover", to="b").ok
    group["b"].start_broker()
    group.run(20)
    assert order(group["a"], "switchover", to="b", wait_ms=1000).ok


def test_an_order_to_switch_waits_for_the_gate() -> None:
    group = grown()
    group["b"].reput.held_at = group["b"].page.get(Slot.DISPATCHED)
    group["a"].post(Command(77, "switchover", {"to": "b"}))
    group.until(lambda: group["b"].state == "master")
    group.run(1000)
    assert 77 not in group["a"].replies
    group["b"].reput.held_at = None
    group.until(lambda: 77 in group["a"].replies, 1000)
    assert group["a"].replies[77].ok
    assert group.serves("b")


@pytest.mark.parametrize("how", ["stopped", "killed"])
def test_a_master_whose_reput_stands_still_hands_over(how: str) -> None:
    group = grown()
    lose_reput(group, "a", how)
    took_ms = group.until(lambda: group.serves("b") or group.serves("c"))
    assert LOCAL.lease_ms <= took_ms < 2 * LOCAL.lease_ms
    assert group["a"].context.trouble == "reput_stalls"
    assert "stalled-service" in group["a"].context.alarms
    epoch = lease_of(group).epoch
    group["a"].reput.alive, group["a"].reput.paused = True, False
    group.run(10 * LOCAL.lease_ms)
    assert group["a"].context.alarms == {}
    assert lease_of(group).epoch == epoch


def test_a_gate_that_stays_shut_without_a_known_trouble_is_left_to_another() -> None:
    group = grown()
    group["b"].reput.held_at = group["b"].page.get(Slot.DISPATCHED)
    group["a"].post(Command(77, "switchover", {"to": "b"}))
    group.until(lambda: group["b"].state == "master")
    took_ms = group.until(lambda: group.serves("a") or group.serves("c"))
    assert 2 * LOCAL.lease_ms <= took_ms < 6 * LOCAL.lease_ms
    said = [note.sentence for note in group["b"].notes if note.event == "not-open"]
    assert "reput has dispatched the log up to" in said[0]
    group.run(20 * LOCAL.lease_ms)
    assert not group.serves("b")
    assert lease_of(group).epoch == 3


def test_a_gate_that_stays_shut_where_no_other_node_could_lead_is_an_alarm() -> None:
    group = grown(1, ("a",))
    group["a"].reput.held_at = group["a"].page.get(Slot.DISPATCHED)
    group["a"].kill_broker()
    group["a"].start_broker()
    group.until(lambda: "not-open" in group["a"].context.alarms)
    status = group["a"].status()
    assert status["opening_ms"] >= 2 * LOCAL.lease_ms
    assert status["nodes"][0]["reason"].startswith("not-open: Epoch 2 is granted but accepts no")
    group.run(20 * LOCAL.lease_ms)
    assert lease_of(group).epoch == 2
    group["a"].reput.held_at = None
    group.until(lambda: group.serves("a"))
    group.run(100)
    assert group["a"].context.alarms == {}
    assert group["a"].status()["opening_ms"] is None


def test_members_that_all_open_slowly_get_there() -> None:
    # Each needs eight lease times to open. If each gave up after the same time, none ever would.
    group = grown()
    for node in group.nodes.values():
        node.reput.opening_ms = 8 * LOCAL.lease_ms
    group["a"].kill_broker()
    group["a"].start_broker()
    group.until(lambda: not group.masters)
    group.until(lambda: any(group.serves(name) for name in group.nodes), 100 * LOCAL.lease_ms)


@for_each(
    ("services", "stall_ms"),
    [(("broker",), 2600), (("reput",), 2600), (("ha",), 2600), (SERVICES, 1000), (SERVICES, 2100)],
)
def test_a_stall_that_is_shorter_than_a_lease_changes_no_epoch(
    services: tuple[str, ...], stall_ms: int
) -> None:
    group = grown()
    for _ in range(3):
        group["a"].pause(*services)
        group.run(stall_ms)
        group["a"].resume(*services)
        group.until(lambda: group.serves("a"), 1000)
        group.send_confirmed()
        group.run(FORGIVEN_PER_MS * stall_ms)
        group.wait_in_sync("a", "b", "c")
    assert lease_of(group).epoch == 1


@for_each(
    ("services", "stall_ms", "between_ms"),
    [
        (("broker",), 1500, 300),
        (("broker",), 2900, 1000),
        (("reput",), 2600, 300),
        (("reput",), 4000, 1000),
        (("ha",), 2900, 300),
        (("ha",), 1500, 1000),
        (SERVICES, 4000, 300),
        (SERVICES, 2600, 1000),
    ],
)
def test_stalls_that_come_again_and_again_cost_one_hand_over(
    services: tuple[str, ...], stall_ms: int, between_ms: int
) -> None:
    group = grown()
    served_ms = 0
    for _ in range(12):
        group["a"].pause(*services)
        group.run(stall_ms)
        group["a"].resume(*services)
        group.run(between_ms)
        served_ms += stall_ms * any(group.serves(name) for name in ("b", "c"))
    assert lease_of(group).epoch <= 4
    assert served_ms > 6 * stall_ms
    assert group.serves("b") or group.serves("c")
    group.send_confirmed()


def test_a_master_that_hangs_hands_over_to_a_slave_that_stood_still_of_late() -> None:
    group = grown(1, ("a", "b"))
    group["b"].pause("reput")
    lose_reput(group, "a", "stopped")
    group.run(LOCAL.lease_ms - 700)
    group["b"].resume("reput")
    group.run(500)
    assert group["b"].context.liveness.remembered_ms >= LOCAL.lease_ms // 2
    assert group.until(lambda: group.serves("b")) < LOCAL.lease_ms // 2


@for_each(
    ("services", "names", "mean_ms"),
    [
        (("broker",), ("a", "b"), 1000),
        (SERVICES, ("a", "b"), 1500),
        (("broker",), ("a", "b", "c"), 1500),
        (SERVICES, ("a", "b", "c"), 1000),
    ],
)
def test_nodes_that_all_stall_as_often_do_not_pass_the_lease_around(
    services: tuple[str, ...], names: tuple[str, ...], mean_ms: int
) -> None:
    # Two nodes on one busy machine changed the master up to eight times a minute, each time because
    # of stalls of the master.
    group, random = grown(len(names) - 1, names), Random(7)
    left_ms = dict.fromkeys(names, 0)
    is_paused = dict.fromkeys(names, True)
    for _ in range(60_000 // 50):
        for name in names:
            left_ms[name] -= 50
            if left_ms[name] <= 0:
                (group[name].resume if is_paused[name] else group[name].pause)(*services)
                is_paused[name] = not is_paused[name]
                left_ms[name] = random.randrange(mean_ms // 2, mean_ms * 3 // 2)
        group.run(50)
    assert lease_of(group).epoch <= 2
    for name in names:
        group[name].resume(*services)
    group.run(10 * LOCAL.lease_ms)
    group.send_confirmed()


@for_each(("service", "stall_ms"), [("broker", 8000), ("ha", 8000), ("broker", 60_000)])
def test_a_stall_that_is_longer_than_a_lease_moves_the_master_once(
    service: str, stall_ms: int
) -> None:
    group = grown()
    group["a"].pause(service)
    took_ms = group.until(lambda: group.serves("b") or group.serves("c"), 3 * LOCAL.lease_ms)
    assert took_ms <= stall_ms
    group.run(stall_ms - took_ms)
    group["a"].resume(service)
    group.run(10 * LOCAL.lease_ms)
    assert lease_of(group).epoch == 2
    group.wait_in_sync("a", "b", "c")
