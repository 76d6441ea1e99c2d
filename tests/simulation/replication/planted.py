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
    "added-member-not-waited-for": Planted(acks.added_member_not_waited_for, "", 0),
    "quorum-instead-of-set": Planted(acks.quorum_instead_of_set, "", 0),
    "acks-of-an-old-epoch-counted": Planted(acks.acks_of_an_old_epoch_counted, "", 0),
    "ends-of-hello-counted": Planted(acks.ends_of_hello_counted, "", 0),
    "unsynced-bytes-acknowledged": Planted(acks.unsynced_bytes_acknowledged, "", 0),
    "candidate-goes-on-acknowledging": Planted(acks.candidate_goes_on_acknowledging, "", 0),
    "term-confirms-its-whole-log": Planted(acks.term_confirms_its_whole_log, "", 0),
    "shrunk-without-compare-and-set": Planted(acks.shrunk_without_compare_and_set, "", 0),
    "shrunk-before-it-is-confirmed": Planted(acks.shrunk_before_it_is_confirmed, "", 0),
    "added-below-the-confirm-offset": Planted(acks.added_below_the_confirm_offset, "", 0),
    "no-growth-before-the-epoch-is-open": Planted(acks.no_growth_before_the_epoch_is_open, "", 0),
    "two-incarnations-of-a-node": Planted(acks.two_incarnations_of_a_node, "", 0),
    "promotion-of-a-non-member": Planted(logs.promotion_of_a_non_member, "", 0),
    "candidate-removed-as-the-old-holder": Planted(logs.candidate_removed_as_the_old_holder, "", 0),
    "promised-before-the-lease-is-won": Planted(logs.promised_before_the_lease_is_won, "", 0),
    "old-version-read-as-not-applied": Planted(logs.old_version_read_as_not_applied, "", 0),
    "no-truncation-on-rejoin": Planted(logs.no_truncation_on_rejoin, "", 0),
    "entry-without-bytes-is-damage": Planted(logs.entry_without_bytes_is_damage, "", 0),
    "lease-made-again-from-memory": Planted(logs.lease_made_again_from_memory, "", 0),
    "table-cut-only-with-bytes": Planted(logs.table_cut_only_with_bytes, "", 0),
    "no-entry-for-an-empty-term": Planted(logs.no_entry_for_an_empty_term, "", 0),
    "log-taken-before-byte-0-is-free": Planted(logs.log_taken_before_byte_0_is_free, "", 0),
    "deadline-kept-over-a-reboot": Planted(logs.deadline_kept_over_a_reboot, "", 0),
}
