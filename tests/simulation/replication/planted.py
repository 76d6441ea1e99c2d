"""Mistakes that the simulation has to find, planted for the length of a ``with``.

Each takes one rule away from the code under test, or words it as it was worded once. They live here
and nowhere in the product; what they patch is named, so a rename breaks the test and not the proof.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Final, NamedTuple

from tests.simulation.replication import planted_acks as acks
from tests.simulation.replication import planted_logs as logs


class Planted(NamedTuple):
    """One mistake."""

    plant: Callable[[], AbstractContextManager[None]]
    symptom: str
    """Regular expression of how it shows itself first: found for another reason is by chance."""
    seed: int
    """One that finds it; another is looked for when it does not any more."""


FAULTS: Final[dict[str, Planted]] = {
    "added-member-not-waited-for": Planted(acks.added_member_not_waited_for, "A: ", 6),
    "quorum-instead-of-set": Planted(acks.quorum_instead_of_set, "A: ", 0),
    "acks-of-an-old-epoch-counted": Planted(acks.acks_of_an_old_epoch_counted, "A: |B: ", 122),
    "ends-of-hello-counted": Planted(acks.ends_of_hello_counted, "A: |B: ", 150),
    "unsynced-bytes-acknowledged": Planted(
        acks.unsynced_bytes_acknowledged, "A: |its disk is sure of", 4
    ),
    "candidate-goes-on-acknowledging": Planted(
        acks.candidate_goes_on_acknowledging, "is HALTED|A: |F: ", 58
    ),
    "term-confirms-its-whole-log": Planted(acks.term_confirms_its_whole_log, "A: ", 9),
    "shrunk-without-compare-and-set": Planted(acks.shrunk_without_compare_and_set, "A: ", 6),
    "shrunk-before-it-is-confirmed": Planted(acks.shrunk_before_it_is_confirmed, "A: ", 11),
    "added-below-the-confirm-offset": Planted(acks.added_below_the_confirm_offset, "A: ", 1),
    "no-growth-before-the-epoch-is-open": Planted(
        acks.no_growth_before_the_epoch_is_open, "healed for", 1
    ),
    "two-incarnations-of-a-node": Planted(
        acks.two_incarnations_of_a_node, "two incarnations of one node", 1
    ),
    "promotion-of-a-non-member": Planted(logs.promotion_of_a_non_member, "A: ", 7),
    "candidate-removed-as-the-old-holder": Planted(
        logs.candidate_removed_as_the_old_holder, "is not in the set", 6
    ),
    "promised-before-the-lease-is-won": Planted(
        logs.promised_before_the_lease_is_won, "nobody has acquired it", 0
    ),
    "old-version-read-as-not-applied": Planted(logs.old_version_read_as_not_applied, "A: ", 95),
    "no-truncation-on-rejoin": Planted(
        logs.no_truncation_on_rejoin, "healed for|cannot be true", 9
    ),
    "entry-without-bytes-is-damage": Planted(logs.entry_without_bytes_is_damage, "is HALTED", 388),
    "lease-made-again-from-memory": Planted(
        logs.lease_made_again_from_memory, "E: |two incarnations|A: ", 260
    ),
    "table-cut-only-with-bytes": Planted(logs.table_cut_only_with_bytes, "healed for", 135),
    "no-entry-for-an-empty-term": Planted(
        logs.no_entry_for_an_empty_term, "F: |cannot be true|is RESYNC", 145
    ),
    "log-taken-before-byte-0-is-free": Planted(
        logs.log_taken_before_byte_0_is_free, "still appends under|has the log", 12
    ),
    "deadline-kept-over-a-reboot": Planted(
        logs.deadline_kept_over_a_reboot, "E: .* started again", 13
    ),
}
