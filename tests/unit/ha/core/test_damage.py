"""Damage in the log of a master: it hands over to a healthy member, and is copied anew."""

from __future__ import annotations

import pytest

from services.ha.core.damage import RECHECK_MS
from services.ha.core.divergence import CRC_WINDOW
from services.ha.core.events import Command, CopyFault
from shared.cluster.time_rules import LOCAL
from tests.unit.ha.group import Group, grown, lease_of, order, same_logs
from tidemark.formats.checkpoint import Trouble


def damage(group: Group, name: str, *, met: bool = True) -> None:
    node = group[name]
    node.damaged = True
    if met:
        node.met = 500


def test_a_master_whose_log_is_damaged_hands_over_and_halts() -> None:
    group = grown(1)
    damage(group, "a")
    new = group.wait_master(other_than="a")
    group.until(lambda: group["a"].state == "halted")
    assert group["a"].checked == [500]
    assert "bad CRC at 500" in group["a"].context.alarms["corrupt-record"]
    assert "corrupt-record" in group["a"].status()["nodes"][0]["reason"]
    new.kill()
    group.until(lambda: len(group.masters) == 1)
    group.run(10 * LOCAL.lease_ms)
    assert "a" not in {master.name for master in group.masters}


def test_damage_is_known_to_later_starts_and_the_node_is_never_elected() -> None:
    # ha lost this knowledge with its process: its next start read only the end of the log, followed
    # again, and took the lease when the master was lost.
    group = grown(1)
    damage(group, "a")
    group.wait_master(other_than="a")
    group.until(lambda: group["a"].state == "halted")
    group["a"].met = None
    for _ in range(2):
        group["a"].kill_ha()
        group.run(1000)
        group["a"].start_ha()
        group.until(lambda: group["a"].state == "halted")
        assert "bad CRC at 500" in group["a"].context.alarms["corrupt-record"]
        group.run(2 * LOCAL.lease_ms)
        assert group.set == {"b", "c"}, "it never counted as a copy"
    # Also if it starts when no other node is there, and is still in the set.
    group.edit_lease(in_sync=tuple(sorted({*lease_of(group).in_sync, group["a"].context.member})))
    group["a"].kill_ha()
    group["b"].kill()
    group["c"].kill()
    group["a"].start_ha()
    group.run(20 * LOCAL.lease_ms)
    assert group["a"].state == "follower"
    assert group["a"].context.trouble == "damaged"


def test_a_damaged_master_goes_on_in_its_own_lease_when_ha_starts_again() -> None:
    group = grown(1, ("a", "b"))
    group["b"].kill()
    damage(group, "a")
    group.until(lambda: "corrupt-record" in group["a"].context.alarms)
    group["a"].kill_ha()
    group.run(100)
    group["a"].start_ha()
    assert "corrupt-record" in group["a"].context.alarms
    # The check of the log began with the process, and found the same damage again: the node halted,
    # and no node served.
    group["a"].post(CopyFault("corrupt-record", "bad CRC at 500", 1000))
    assert group["a"].state == "follower"
    group.until(lambda: group.serves("a"))
    group["b"].start()
    assert group.wait_master(other_than="a").name == "b"
    group.until(lambda: group["a"].state == "halted")


def test_it_is_copied_anew_by_order_and_is_whole_then() -> None:
    group = grown(1)
    damage(group, "a")
    group.wait_master(other_than="a")
    group.until(lambda: group["a"].state == "halted")
    group["a"].damaged, group["a"].met = False, None
    group.until(lambda: group.serves("b") or group.serves("c"))
    group.run(50)
    assert order(group["a"], "resync", group="g0").ok
    group.wait_in_sync("a", "b", "c")
    assert group["a"].context.alarms == {}
    assert same_logs(group, group.send_confirmed())
    group.master.kill()
    group.until(lambda: len(group.masters) == 1)


def test_one_of_two_required_copies_is_copied_anew_from_a_master_that_opens_with_it() -> None:
    # The order was refused: the new master opens its epoch once two nodes have its first record.
    group = grown(2, ("a", "b"))
    damage(group, "a")
    group.until(lambda: group["a"].state == "halted")
    group.run(2 * LOCAL.lease_ms)
    assert group["b"].state == "promoting"
    group["a"].damaged, group["a"].met = False, None
    assert order(group["a"], "resync", group="g0").ok
    group.wait_in_sync("a", "b")
    group.until(lambda: group.serves("b"))
    assert same_logs(group, group.send_confirmed())


def knows_holder(group: Group, node: str) -> bool:
    """Whether the node has read in the lease that another one holds it."""
    stored = group[node].context.session.stored
    holder = None if stored is None else stored.lease.holder
    return holder is not None and holder.node != node


def must_keep_its_copy(group: Group, node: str, master: str) -> None:
    """The node may have the only copy of what the master has lost."""
    before = group[node].state
    reply = order(group[node], "resync", group="g0")
    assert not reply.ok
    assert f"{master} reports damage" in reply.body["detail"]
    assert group[node].state == before


def test_no_copy_is_emptied_for_a_damaged_master_that_has_not_opened_its_epoch() -> None:
    group = grown(2, ("a", "b"))
    damage(group, "a")
    group.until(lambda: group["a"].state == "halted")
    damage(group, "b")
    group.until(lambda: group["b"].context.trouble == "damaged")
    group.until(lambda: group["b"].state == "promoting")
    group.until(lambda: knows_holder(group, "a"))
    must_keep_its_copy(group, "a", "b")


def test_no_copy_is_emptied_for_a_damaged_master_that_serves() -> None:
    group = grown(1, ("a", "b"))
    damage(group, "a")
    group.until(lambda: group["a"].state == "halted" and group.serves("b"))
    damage(group, "b")
    group.until(lambda: group["b"].context.trouble == "damaged")
    group.run(LOCAL.heartbeat_ms)
    assert group.serves("b")
    must_keep_its_copy(group, "a", "b")
    group["b"].trouble = (Trouble.DISK_FULL, Trouble.NONE)
    group.run(LOCAL.heartbeat_ms)
    must_keep_its_copy(group, "a", "b")


def test_damage_that_is_not_the_log_s_changes_nothing() -> None:
    # A damaged bit of a consume queue sends a reader to a place where no record begins.
    group = grown()
    group["a"].met = 500
    group.run(5000)
    assert group["a"].checked == [500]
    assert (lease_of(group).epoch, group["a"].context.alarms) == (1, {})
    group["a"].met = 700
    group.run(5000)
    assert group["a"].checked == [500, 700]


def test_a_place_that_is_reported_anew_is_checked_again() -> None:
    # A place was checked once in the life of a process. 1. The log of a slave is damaged, its
    # master checks its own, and the slave is copied anew. 2. The same file of the master is damaged
    # later, and a slave reports that the logs differ there. 3. The master did not check it again,
    # and the slave waited for the next check of the whole log, days later.
    group = grown()
    group["a"].met = 500
    group.run(1000)
    group["a"].met = None
    group.run(1000)
    assert group["a"].checked == [500]
    group["a"].met = 500
    group.run(5000)
    assert group["a"].checked == [500], "not so soon"
    group.run(RECHECK_MS)
    assert group["a"].checked == [500, 500]
    group.run(2 * RECHECK_MS)
    assert group["a"].checked == [500, 500], "the report is still the same"


def test_places_that_are_reported_in_turn_are_not_read_without_end() -> None:
    # The gate shows the last place only, so two consumers that retry make it alternate. ha read
    # both files at each change, and its check of the whole log began from the start each time.
    group = grown()
    for turn in range(100):
        group["a"].met = (500, 700)[turn % 2]
        group.run(100)
    assert group["a"].checked == [500, 700]


def test_a_master_with_damage_goes_on_where_no_other_node_could_lead() -> None:
    group = grown(1, ("a", "b"))
    group["b"].kill()
    damage(group, "a")
    group.until(lambda: "corrupt-record" in group["a"].context.alarms)
    group.run(20_000)
    assert group.serves("a")
    assert lease_of(group).epoch == 1
    group["b"].start()
    group.wait_in_sync("a", "b")
    assert group.wait_master(other_than="a").name == "b"
    group.until(lambda: group["a"].state == "halted")


def test_a_sound_member_takes_the_lease_before_a_damaged_one() -> None:
    # The switch fails, so the damaged node has no master yet: it campaigns last.
    group = grown()
    broker = group["a"].broker
    assert broker is not None
    broker.keeps_log = True
    damage(group, "a")
    group.until(lambda: group["a"].context.trouble == "damaged")
    group.until(lambda: group["a"].state == "fenced")
    group.run(2500)
    broker.keeps_log = False
    assert group.wait_master(at_most_ms=5 * LOCAL.lease_ms).name != "a"


# A damaged bit of the master's log that HELLO compares: the healthy slaves halted, one after the
# other, and the master had no trouble.
@pytest.mark.parametrize("damaged", ["a", "b"])
def test_logs_that_differ_are_checked_on_both_sides_and_the_damaged_one_halts(damaged: str) -> None:
    group = grown()
    group.send_confirmed()
    group.run(1000)
    node = group[damaged]
    node.volume.log[-30] ^= 1
    node.damaged = True
    group.drop_links("b")
    group.until(lambda: "logs-differ" in group["b"].context.alarms)
    group.until(lambda: node.state == "halted")
    sound = {"a", "b", "c"} - {damaged}
    group.until(lambda: group.set == sound and len(group.masters) == 1, 5 * LOCAL.lease_ms)
    group.until(lambda: not any(group[name].context.alarms for name in sound))
    assert group.master.name in sound
    assert len(node.checked) == len(set(node.checked)), "each place once"


def test_the_bytes_compared_are_checked_in_both_files_that_hold_them() -> None:
    group = grown()
    size = group["a"].context.setup.file_size
    for name in ("a", "c"):
        group[name].context.confirm = 3 * size
    group["c"].context.logs_differ(size - 100, size + 100)
    group.until(lambda: size + 99 in group["a"].checked, 5000)
    assert size - 1 in group["a"].checked
    assert {size - 1, size + 99} <= set(group["c"].checked)


def test_small_log_files_between_the_first_and_the_last_are_checked_as_well() -> None:
    # Only the first and the last file of the range were checked. Damage in a file between them was
    # not found: the two nodes kept disagreeing, and neither handed over nor halted.
    group = grown()
    size, at = CRC_WINDOW // 4, CRC_WINDOW + 100
    for node in group.nodes.values():
        node.context.setup = node.context.setup._replace(file_size=size)
        node.context.confirm = 2 * CRC_WINDOW
    group["c"].context.logs_differ(at, at + 1)
    ends = [size - 1, 2 * size - 1, 3 * size - 1, 4 * size - 1]
    group.until(lambda: at in group["a"].checked, 5000)
    assert group["a"].checked == group["c"].checked == [*ends, at]


@pytest.mark.parametrize("bad", [True, False])
def test_a_slave_that_refuses_what_its_master_sends_has_that_log_looked_at(bad: bool) -> None:
    group = grown()
    damage(group, "a", met=False)
    if not bad:
        group["a"].damaged = False
    context = group["c"].context
    context.alarm("bad-stream", "a CRC")
    context.end = 300
    group.until(lambda: 300 in group["a"].checked, 5000)
    context.calm("bad-stream")
    group.run(3000)
    if bad:
        group.wait_master(other_than="a")
    else:
        assert group.serves("a")


def test_what_a_slave_refuses_is_looked_at_though_it_closes_its_link_at_once() -> None:
    # A slave that rejects the stream ends the link at once, and tries again after two seconds. The
    # master saw its STATUS without a link, checked nothing, and stayed the master of a log that no
    # node could copy.
    group = grown()
    damage(group, "a", met=False)
    context = group["c"].context
    context.alarm("bad-stream", "a CRC")
    context.end = 300

    def looked_at() -> bool:
        master = group["a"].replica
        if master is not None and (term := master.leadership.term) is not None:
            for number in [each for each, link in term.links.items() if link.peer.node == "c"]:
                del term.links[number]
        return 300 in group["a"].checked

    group.until(looked_at, 5000)
    context.calm("bad-stream")
    group.wait_master(other_than="a")


def test_damage_of_a_store_that_is_being_emptied_is_none_of_the_new_member() -> None:
    group = grown(1)
    damage(group, "a")
    group.wait_master(other_than="a")
    group.until(lambda: group["a"].state == "halted")
    group["a"].damaged, group["a"].met = False, None
    group.until(lambda: group.serves("b") or group.serves("c"))
    group.run(50)
    node = group["a"]
    node.post(Command(7, "resync", {"group": "g0"}))
    assert node.state == "resync"
    node.context.calm("corrupt-record")
    node.post(CopyFault("corrupt-record", "bad CRC at 700", 1000))
    assert "corrupt-record" not in node.context.alarms
    group.wait_in_sync("a", "b", "c")
    assert node.context.damage == ""


# A slave that does not follow prevents that the log is confirmed to its end until it has left the
# set: the switch failed, and the next one began only ten seconds later.
def test_a_damaged_master_hands_over_as_soon_as_the_set_has_shrunk() -> None:
    group = grown()
    group["b"].kill()
    group.append(100)  # not confirmed while b is waited for
    damage(group, "a")
    group.until(lambda: any(note.event == "switchover-failed" for note in group["a"].notes), 3000)
    group.until(lambda: lease_of(group).holder == group["c"].context.holder, 4000)


# The only other node could not follow and left the set, so the damaged master had no node to hand
# over to.
def test_a_sound_slave_goes_on_copying_from_a_damaged_master_which_hands_over_to_it() -> None:
    group = grown(1, ("a", "b"))
    group["b"].kill()
    group.until(lambda: group.set == {"a"})
    group["a"].volume.log[-30] ^= 1
    group["a"].damaged = True
    sound = bytes(group["b"].volume.log)
    group["b"].start()
    assert group.wait_master(other_than="a").name == "b"
    group.until(lambda: group["a"].state == "halted")
    assert group["b"].volume.log.startswith(sound)
    assert group["b"].context.alarms == {}


def test_a_slave_whose_log_is_damaged_as_well_is_no_target() -> None:
    group = grown(1, ("a", "b"))
    group.run(5000)  # until the confirm offset is on its disk
    group["b"].kill()
    group.until(lambda: group.set == {"a"})
    for name in "ab":
        group[name].damaged = True
    group["a"].volume.log[-30] ^= 1
    group["b"].start()
    group.until(lambda: group["b"].state == "halted")
    group.run(2 * LOCAL.lease_ms)
    assert group.serves("a")
