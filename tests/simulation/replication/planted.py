"""Mistakes that the simulation has to find, planted for the length of a ``with``.

Each removes one rule from the tested code, or restores an earlier wrong version of it. They live
here and nowhere in the product. What they patch is named, so a rename breaks the test and not the
proof.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Final, NamedTuple

from tests.simulation.replication import planted_acks as acks
from tests.simulation.replication import planted_logs as logs
from tests.simulation.replication import planted_nodes as nodes
from tests.simulation.replication import planted_shells as shells
from tests.simulation.replication.plan import Fault


class Planted(NamedTuple):
    """One mistake."""

    plant: Callable[[], AbstractContextManager[None]]
    symptom: str
    """Regular expression of the first symptom; another symptom would be found by chance."""
    seed: int
    """A seed that finds the mistake; the test searches for another one if it no longer does."""
    faults: tuple[Fault, ...] = ()
    """The faults of these worlds, for mistakes that need several at once."""


LINKS: Final = (Fault.SWITCH, Fault.POWER, Fault.RESET_LINKS, Fault.STOP, Fault.SLOW_DISK)
TABLES: Final = (Fault.AT_FILE, Fault.WINNER, Fault.KILL, Fault.SWITCH)
WRITES: Final = (Fault.LATE_CHANGE, Fault.LEASE_DEAF, Fault.LEASE_UNREACHABLE, Fault.CUT)
HASTE: Final = (Fault.HASTY, Fault.SLOW_DISK, Fault.LEASE_DEAF)
SILENCE: Final = (Fault.STOP,)
FLUSHES: Final = (Fault.SWITCH, Fault.SLOW_DISK, Fault.LATE_APPEND, Fault.LEASE_UNREACHABLE)
SWITCHES: Final = (Fault.SWITCH, Fault.STALL, Fault.LATE_APPEND)
NODES: Final = (Fault.NODES, Fault.SWITCH, Fault.CUT)
NODES_LATE: Final = (Fault.NODES, Fault.NODES, Fault.LEASE_UNREACHABLE, Fault.RESET_LINKS)
REPLACED: Final = (Fault.DELETE_LEASE, Fault.NEW_VOLUME)

FAULTS: Final[dict[str, Planted]] = {
    "added-member-not-waited-for": Planted(
        acks.added_member_not_waited_for, "A: |may be in the published set|lacks some of the", 2
    ),
    "quorum-instead-of-set": Planted(acks.quorum_instead_of_set, "A: |lacks some of the", 5),
    "acks-of-an-old-epoch-counted": Planted(
        acks.acks_of_an_old_epoch_counted, "A: |B: |counts", 35, LINKS
    ),
    "ends-of-hello-counted": Planted(acks.ends_of_hello_counted, "A: |B: |counts", 13, LINKS),
    "unsynced-bytes-acknowledged": Planted(
        acks.unsynced_bytes_acknowledged, "A: |its disk, and it is not", 2
    ),
    "candidate-goes-on-acknowledging": Planted(
        acks.candidate_goes_on_acknowledging, "is HALTED|A: |F: |its log ends at", 11, HASTE
    ),
    "term-confirms-its-whole-log": Planted(
        acks.term_confirms_its_whole_log, "A: |does not serve yet", 1
    ),
    "shrunk-without-compare-and-set": Planted(
        acks.shrunk_without_compare_and_set, "A: |may be in the published set", 2
    ),
    "shrunk-before-it-is-confirmed": Planted(
        acks.shrunk_before_it_is_confirmed,
        "A: |members, 2 is the minimum|publishes IN_SYNC_SIZE",
        1,
    ),
    "added-below-the-confirm-offset": Planted(
        acks.added_below_the_confirm_offset, "A: |joins the set, and its table|lacks some of the", 2
    ),
    "no-growth-before-the-epoch-is-open": Planted(
        acks.no_growth_before_the_epoch_is_open, "healed for", 35
    ),
    "two-incarnations-of-a-node": Planted(
        acks.two_incarnations_of_a_node, "two incarnations of one node", 14
    ),
    "promotion-of-a-non-member": Planted(
        logs.promotion_of_a_non_member, "A: |is not in the set|joins the set", 19
    ),
    "candidate-removed-as-the-old-holder": Planted(
        logs.candidate_removed_as_the_old_holder,
        "is not in the set|below the minimum|and its version",
        0,
    ),
    "promised-before-the-lease-is-won": Planted(
        logs.promised_before_the_lease_is_won, "no node has acquired", 2
    ),
    "old-version-read-as-not-applied": Planted(
        logs.old_version_read_as_not_applied, "A: |may be in the published set", 1, WRITES
    ),
    "no-truncation-on-rejoin": Planted(
        logs.no_truncation_on_rejoin, "healed for|cannot be true", 8
    ),
    "lease-made-again-from-memory": Planted(
        logs.lease_made_again_from_memory,
        "has not promised",
        1,
        (Fault.DELETE_LEASE, Fault.KILL),
    ),
    "table-cut-only-with-bytes": Planted(
        logs.table_cut_only_with_bytes,
        "healed for|has no connection|closes a link, for epoch",
        6,
        TABLES,
    ),
    "no-entry-for-an-empty-term": Planted(
        logs.no_entry_for_an_empty_term,
        "F: |joins the set, and its table|cannot be true|is RESYNC|which its table on disk lacks",
        1,
        TABLES,
    ),
    "log-taken-before-byte-0-is-free": Planted(
        logs.log_taken_before_byte_0_is_free, "without byte 0", 1
    ),
    "deadline-kept-over-a-reboot": Planted(
        logs.deadline_kept_over_a_reboot, "E: |acknowledges|grants epoch", 6
    ),
    "byte-0-before-the-flush-ended": Planted(
        shells.BYTE_0_BEFORE_THE_FLUSH_ENDED, "publishes FLUSHED .* without byte 0", 2, FLUSHES
    ),
    "byte-0-before-serving-epoch-is-cleared": Planted(
        shells.BYTE_0_BEFORE_SERVING_EPOCH_IS_CLEARED, "and still serves epoch", 0
    ),
    "hello-before-the-promise-is-durable": Planted(
        shells.HELLO_BEFORE_THE_PROMISE_IS_DURABLE, "is sure of the promise of", 0
    ),
    "grant-not-looked-at-with-byte-0": Planted(
        shells.GRANT_NOT_LOOKED_AT_WITH_BYTE_0, "before it took byte 0", 1
    ),
    "silent-broker-renewed": Planted(
        shells.SILENT_BROKER_RENEWED, "its broker is silent", 10, SILENCE
    ),
    "released-before-the-target-has-the-end": Planted(
        shells.RELEASED_BEFORE_THE_TARGET_HAS_THE_END, "whose disk lacks some of", 36, SWITCHES
    ),
    "promise-of-a-replaced-volume": Planted(
        shells.PROMISE_OF_A_REPLACED_VOLUME, "has not promised", 14, REPLACED
    ),
    "state-read-from-the-confirm-offset": Planted(
        shells.STATE_READ_FROM_THE_CONFIRM_OFFSET, "becomes the master with a state|DAMAGED", 11
    ),
    "removed-node-kept-in-the-set": Planted(
        nodes.REMOVED_NODE_KEPT_IN_THE_SET, "in the in-sync set and no node of the group", 0, NODES
    ),
    "links-of-removed-nodes-kept": Planted(
        nodes.links_of_removed_nodes_kept, "in the in-sync set and no node of the group", 10, NODES
    ),
    "nodes-changed-from-an-old-lease": Planted(
        nodes.change_from_an_old_lease,
        "with the nodes the in-sync set changes|below the minimum",
        12,
        NODES_LATE,
    ),
    "two-changes-of-nodes-at-once": Planted(
        nodes.two_changes_at_once, "carries out Command.*given at version", 2, NODES
    ),
    "nodes-changed-without-agreement": Planted(
        nodes.CHANGED_WITHOUT_AGREEMENT, "changes the nodes of version", 6, NODES_LATE
    ),
}
