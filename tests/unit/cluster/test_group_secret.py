"""The steps of a rotation, the seals of its orders, and what a status shows of a secret."""

from __future__ import annotations

import itertools

import pytest

from shared.cluster.group_secret import (
    Fingerprints,
    Recipient,
    RotationStep,
    RotationUnfinished,
    Secrets,
    after,
    fingerprint,
    seal,
    unseal,
)

OLD, NEW, THIRD = b"the old secret 16", b"the new secret 16", b"a third secret 16"
ONLY_OLD, BOTH = Secrets(OLD, (OLD,)), Secrets(OLD, (OLD, NEW))
SWAPPED, ONLY_NEW = Secrets(NEW, (NEW, OLD)), Secrets(NEW, (NEW,))
ACCEPT, PROVE, FORGET = RotationStep
N1 = Recipient("tidemark", "g0", "n1")
SEEN = Fingerprints("0001", ("0001",))
NONCE = bytes(32)


@pytest.mark.parametrize(
    ("step", "present", "wanted"),
    [
        (ACCEPT, ONLY_OLD, BOTH),
        (ACCEPT, BOTH, BOTH),
        (ACCEPT, SWAPPED, SWAPPED),
        (ACCEPT, ONLY_NEW, ONLY_NEW),
        (ACCEPT, Secrets(OLD, (OLD, THIRD)), None),
        (PROVE, ONLY_OLD, None),
        (PROVE, BOTH, SWAPPED),
        (PROVE, SWAPPED, SWAPPED),
        (PROVE, ONLY_NEW, ONLY_NEW),
        (PROVE, Secrets(OLD, (OLD, THIRD)), None),
        (FORGET, ONLY_OLD, None),
        (FORGET, BOTH, None),
        (FORGET, SWAPPED, ONLY_NEW),
        (FORGET, ONLY_NEW, ONLY_NEW),
    ],
)
def test_a_step_follows_from_the_one_before_or_changes_nothing(
    step: RotationStep, present: Secrets, wanted: Secrets | None
) -> None:
    if wanted is None:
        with pytest.raises(RotationUnfinished, match="Nothing was changed"):
            after(step, NEW, present)
    else:
        assert after(step, NEW, present) == wanted


def test_while_all_nodes_are_within_one_step_each_accepts_what_every_other_proves() -> None:
    states = [ONLY_OLD, BOTH, SWAPPED, ONLY_NEW]
    for earlier, later in itertools.pairwise(states):
        assert earlier.proved in later.accepted
        assert later.proved in earlier.accepted
    assert ONLY_OLD.proved not in ONLY_NEW.accepted  # why a step waits for every node


@pytest.mark.parametrize(
    ("proves", "accepts", "done"),
    [
        ("old", ("old",), set()),
        ("old", ("old", "new"), {ACCEPT}),
        ("new", ("new", "old"), {ACCEPT, PROVE}),
        ("new", ("new",), {ACCEPT, PROVE, FORGET}),
        ("old", ("old", "third"), set()),
    ],
)
def test_the_status_of_a_node_shows_which_steps_it_has_taken(
    proves: str, accepts: tuple[str, ...], done: set[RotationStep]
) -> None:
    seen = Fingerprints(proves, accepts)
    assert {step for step in RotationStep if seen.has_done(step, "new")} == done


@pytest.mark.parametrize("size", [16, 31, 32, 33, 4096])
def test_a_sealed_secret_opens_with_any_accepted_key_and_does_not_show(size: int) -> None:
    secret = bytes(range(256)) * 16
    sealed = seal(secret[:size], OLD, ACCEPT, N1, SEEN, NONCE)
    assert secret[:16] not in sealed
    assert unseal(sealed, (THIRD, OLD), ACCEPT, N1, SEEN) == secret[:size]
    assert unseal(sealed, (THIRD,), ACCEPT, N1, SEEN) is None


def test_a_seal_opens_only_for_its_step_its_node_and_the_state_that_was_seen() -> None:
    # Without the state, an order recorded in an earlier rotation could be sent again: a late FORGET
    # would remove the secret that the next rotation has just added.
    sealed = seal(NEW, OLD, ACCEPT, N1, SEEN, NONCE)
    assert unseal(sealed, (OLD,), PROVE, N1, SEEN) is None
    assert unseal(sealed, (OLD,), ACCEPT, N1._replace(node="n2"), SEEN) is None
    assert unseal(sealed, (OLD,), ACCEPT, N1._replace(group="g1"), SEEN) is None
    assert unseal(sealed, (OLD,), ACCEPT, N1, SEEN._replace(accepts=("0001", "0002"))) is None


def test_no_damaged_or_short_seal_opens() -> None:
    sealed = seal(NEW, OLD, ACCEPT, N1, SEEN, NONCE)
    for bit in range(len(sealed) * 8):
        damaged = bytearray(sealed)
        damaged[bit // 8] ^= 1 << bit % 8
        assert unseal(bytes(damaged), (OLD,), ACCEPT, N1, SEEN) is None
    for size in range(len(sealed)):
        assert unseal(sealed[:size], (OLD,), ACCEPT, N1, SEEN) is None


def test_equal_secrets_have_different_keystreams_in_two_messages() -> None:
    one = seal(NEW, OLD, ACCEPT, N1, SEEN, bytes(32))
    other = seal(NEW, OLD, ACCEPT, N1, SEEN, bytes(31) + b"\1")
    assert one[32:-32] != other[32:-32]


def test_a_fingerprint_has_four_digits_and_belongs_to_one_group() -> None:
    shown = fingerprint(OLD, "tidemark", "g0")
    assert len(shown) == 4
    assert shown == fingerprint(OLD, "tidemark", "g0")
    others = [fingerprint(NEW, "tidemark", "g0"), fingerprint(OLD, "tidemark", "g1")]
    assert shown not in others
