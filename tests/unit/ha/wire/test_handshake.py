from __future__ import annotations

from random import Random

import pytest

from services.ha.lease.value import Member
from services.ha.wire import handshake
from services.ha.wire.frames import Decoder, Frame, FrameType, encode
from services.ha.wire.handshake import Accepting, Connecting, Identity, Peer, Reason, Refused
from services.ha.wire.versions import SPOKEN, Versions
from tests.support import ha_fuzz
from tests.support.for_each import for_each
from tests.support.fuzz_cases import damaged

SECRET = b"sixteen bytes or more"
NODES = ("n0", "n1", "n2")
LISTENS = Identity("tidemark", "g0", "n0", "00" * 16, 1 << 30)
CONNECTS = Identity("tidemark", "g0", "n1", "11" * 16, 1 << 30)


def accepting(
    own: Identity = LISTENS,
    *,
    secret: bytes = SECRET,
    nonce: int = 1,
    versions: Versions = SPOKEN,
) -> Accepting:
    nonce_bytes = bytes([nonce]) * 32
    return Accepting(own, accepted=[secret], nonce=nonce_bytes, nodes=NODES, versions=versions)


def connecting(
    own: Identity = CONNECTS,
    *,
    secret: bytes = SECRET,
    nonce: int = 2,
    wanted: str = "n0",
    versions: Versions = SPOKEN,
) -> Connecting:
    return Connecting(
        own,
        secret=secret,
        nonce=bytes([nonce]) * 32,
        nodes=NODES,
        wanted=wanted,
        versions=versions,
    )


def sent(step: handshake.Step) -> Frame:
    assert step.send is not None
    return step.send


def shake(listens: Accepting, connects: Connecting) -> tuple[Peer | None, Peer | None]:
    """Run a handshake; return the peers, the one that the accepting side found first."""
    found = listens.take(sent(connects.take(listens.begin())))
    return found.peer, connects.take(sent(found)).peer


def test_two_nodes_that_know_the_secret_find_each_other() -> None:
    assert shake(accepting(), connecting()) == (
        Peer(Member("n1", "11" * 16), SPOKEN.highest),
        Peer(Member("n0", "00" * 16), SPOKEN.highest),
    )


def test_a_peer_without_the_secret_gets_nothing_but_the_challenge() -> None:
    listens = accepting()
    challenge = listens.begin()
    assert len(challenge.payload) == 8 + 2 + 2 + 32
    assert b"n0" not in bytes(challenge.payload)
    answer = sent(connecting(secret=b"another secret, long").take(challenge))
    with pytest.raises(Refused) as refused:
        listens.take(answer)
    assert refused.value.reason is Reason.WRONG_SECRET
    assert refused.value.answer is None


def test_a_listener_without_the_secret_is_not_believed() -> None:
    secret = b"another secret, long"
    rogue = accepting(secret=secret)
    body = bytes(sent(rogue.take(sent(connecting(secret=secret).take(rogue.begin())))).payload)
    for kind in (FrameType.WELCOME, FrameType.REFUSED):
        connects = connecting()
        connects.take(rogue.begin())
        with pytest.raises(Refused) as refused:
            connects.take(Frame(kind, 0, body))
        assert refused.value.reason is Reason.WRONG_SECRET


def test_an_answer_recorded_on_another_connection_proves_nothing() -> None:
    answer = sent(connecting().take(accepting(nonce=1).begin()))
    with pytest.raises(Refused) as refused:
        accepting(nonce=9).take(answer)
    assert refused.value.reason is Reason.WRONG_SECRET


def test_a_welcome_recorded_on_another_connection_proves_nothing() -> None:
    listens = accepting()
    welcome = sent(listens.take(sent(connecting(nonce=2).take(listens.begin()))))
    again = connecting(nonce=9)
    again.take(listens.begin())
    with pytest.raises(Refused) as refused:
        again.take(welcome)
    assert refused.value.reason is Reason.WRONG_SECRET


def test_a_proof_sent_back_proves_nothing() -> None:
    connects = connecting()
    answer = sent(connects.take(accepting().begin()))
    with pytest.raises(Refused) as refused:
        connects.take(Frame(FrameType.WELCOME, 0, answer.payload))
    assert refused.value.reason is Reason.WRONG_SECRET


def test_a_challenge_sent_back_is_not_answered() -> None:
    with pytest.raises(Refused) as refused:
        connecting(nonce=5).take(accepting(nonce=5).begin())
    assert refused.value.reason is Reason.OUT_OF_ORDER


MISFITS = {
    Reason.FOREIGN_CLUSTER: CONNECTS._replace(cluster="other"),
    Reason.FOREIGN_GROUP: CONNECTS._replace(group="g1"),
    Reason.SAME_NAME: CONNECTS._replace(node="n0"),
    Reason.UNKNOWN_NODE: CONNECTS._replace(node="n9"),
    Reason.FILE_SIZE_DIFFERS: CONNECTS._replace(file_size=1 << 20),
}


@pytest.mark.parametrize("reason", MISFITS)
def test_a_peer_that_does_not_fit_is_refused_and_both_sides_can_name_why(reason: Reason) -> None:
    listens, connects = accepting(), connecting(MISFITS[reason])
    with pytest.raises(Refused) as refused:
        listens.take(sent(connects.take(listens.begin())))
    assert refused.value.reason is reason
    assert refused.value.answer is not None
    with pytest.raises(Refused) as caught:
        connects.take(refused.value.answer)
    assert caught.value.reason is reason
    assert refused.value.detail in caught.value.detail


def test_an_address_that_leads_to_another_node_is_named_by_both() -> None:
    listens, connects = accepting(), connecting(wanted="n2")
    with pytest.raises(Refused) as refused:
        listens.take(sent(connects.take(listens.begin())))
    assert refused.value.reason is Reason.WRONG_NODE
    assert refused.value.answer is not None
    with pytest.raises(Refused, match="wrong-node"):
        connects.take(refused.value.answer)


def test_a_long_detail_still_fits_a_refusal() -> None:
    listens, connects = accepting(), connecting(CONNECTS._replace(cluster="ß" * 127))
    with pytest.raises(Refused) as refused:
        listens.take(sent(connects.take(listens.begin())))
    assert refused.value.answer is not None
    with pytest.raises(Refused, match="foreign-cluster"):
        connects.take(refused.value.answer)


RANGES = [Versions(low, high) for low in range(1, 5) for high in range(low, 5)]


@for_each("theirs", RANGES)
@for_each("own", RANGES)
def test_two_nodes_speak_the_highest_version_that_both_know_or_both_say_that_there_is_none(
    own: Versions, theirs: Versions
) -> None:
    listens, connects = accepting(versions=own), connecting(versions=theirs)
    both = set(range(own.lowest, own.highest + 1)) & set(range(theirs.lowest, theirs.highest + 1))
    answer = sent(connects.take(listens.begin()))
    if both:
        welcome = listens.take(answer)
        assert welcome.peer == Peer(Member("n1", "11" * 16), max(both))
        assert connects.take(sent(welcome)).peer == Peer(Member("n0", "00" * 16), max(both))
        return
    with pytest.raises(Refused) as refused:
        listens.take(answer)
    assert refused.value.reason is Reason.PROTOCOL_VERSION
    assert f"n0 speaks {own}" in refused.value.detail
    assert f"of {theirs.highest} asked for" in refused.value.detail
    assert refused.value.answer is not None
    with pytest.raises(Refused) as caught:
        connects.take(refused.value.answer)
    assert caught.value.reason is Reason.PROTOCOL_VERSION
    assert f"n0 speaks versions {own} of the replication protocol" in caught.value.detail
    assert f"n1 speaks {theirs}" in caught.value.detail


def test_versions_are_judged_before_what_a_version_may_have_changed() -> None:
    # An ANSWER of a far later version, of which only the first bytes have the known layout.
    listens = accepting()
    body = b"\x00\x09\x00\x09" + b"another layout"
    proof = handshake._proof(SECRET, b"answer", bytes(listens.begin().payload), body)
    with pytest.raises(Refused, match="protocol-version"):
        listens.take(Frame(FrameType.ANSWER, 0, body + proof))


def test_a_version_is_not_asked_for_that_is_not_the_highest_common_one() -> None:
    listens = accepting(versions=Versions(1, 3))
    genuine = bytes(sent(connecting(versions=Versions(1, 3)).take(listens.begin())).payload)
    body = b"\x00\x02" + genuine[2:-32]
    proof = handshake._proof(SECRET, b"answer", bytes(listens.begin().payload), body)
    with pytest.raises(Refused, match="protocol-version"):
        listens.take(Frame(FrameType.ANSWER, 0, body + proof))


OWN, LATER = Versions(1, 2), Versions(1, 3)


def longer_answer(theirs: Versions) -> tuple[Accepting, Frame]:
    """An ANSWER with additions behind the known fields and a right proof."""
    listens = accepting(versions=OWN)
    body = bytes(sent(connecting(versions=theirs).take(listens.begin())).payload)[:-32] + b"more"
    proof = handshake._proof(SECRET, b"answer", bytes(listens.begin().payload), body)
    return listens, Frame(FrameType.ANSWER, 0, body + proof)


def longer_welcome(theirs: Versions) -> tuple[Connecting, Frame]:
    listens, connects = accepting(versions=theirs), connecting(versions=OWN)
    answer = bytes(sent(connects.take(listens.begin())).payload)
    body = handshake._put_identity(LISTENS) + b"more"
    proof = handshake._proof(SECRET, b"welcome", bytes(listens.begin().payload), answer, body)
    return connects, Frame(FrameType.WELCOME, 0, body + proof)


def longer_challenge(theirs: Versions) -> Frame:
    challenge = accepting(versions=theirs).begin()
    return challenge._replace(payload=bytes(challenge.payload) + b"more")


def test_what_a_later_version_says_more_is_passed_over() -> None:
    listens, answer = longer_answer(LATER)
    assert listens.take(answer).peer == Peer(Member("n1", "11" * 16), 2)
    connects, welcome = longer_welcome(LATER)
    assert connects.take(welcome).peer == Peer(Member("n0", "00" * 16), 2)
    assert connecting(versions=OWN).take(longer_challenge(LATER)).send is not None


def test_what_a_known_version_says_more_is_refused() -> None:
    listens, answer = longer_answer(OWN)
    with pytest.raises(Refused, match="out-of-order"):
        listens.take(answer)
    connects, welcome = longer_welcome(OWN)
    with pytest.raises(Refused, match="out-of-order"):
        connects.take(welcome)
    with pytest.raises(Refused, match="out-of-order"):
        connecting(versions=OWN).take(longer_challenge(OWN))


def test_a_welcome_where_no_version_is_common_is_not_believed() -> None:
    old, new = Versions(2, 2), Versions(3, 3)
    listens, connects = accepting(versions=old), connecting(versions=new)
    answer = bytes(sent(connects.take(listens.begin())).payload)
    body = handshake._put_identity(LISTENS)
    proof = handshake._proof(SECRET, b"welcome", bytes(listens.begin().payload), answer, body)
    with pytest.raises(Refused, match="protocol-version"):
        connects.take(Frame(FrameType.WELCOME, 0, body + proof))


def test_frames_out_of_order_end_the_handshake() -> None:
    status = Frame(FrameType.STATUS, 0, b"")
    for refuse in (accepting().take, connecting().take):
        with pytest.raises(Refused) as refused:
            refuse(status)
        assert refused.value.reason is Reason.OUT_OF_ORDER
    listens, connects = accepting(), connecting()
    answer = sent(connects.take(listens.begin()))
    listens.take(answer)
    with pytest.raises(Refused, match="out-of-order"):
        listens.take(answer)
    with pytest.raises(Refused, match="out-of-order"):
        connects.take(accepting().begin())


def test_a_connection_closed_before_welcome_says_wrong_secret_only_after_the_answer() -> None:
    connects = connecting()
    assert connects.ended().reason is Reason.OUT_OF_ORDER
    connects.take(accepting().begin())
    assert connects.ended().reason is Reason.WRONG_SECRET


@for_each("seed", range(50))
def test_no_damaged_or_hostile_answer_is_welcomed(seed: int) -> None:
    rng = Random(seed)
    genuine = bytes(sent(connecting().take(accepting().begin())).payload)
    for inside in damaged(rng, genuine, 60):
        if inside != genuine:
            with pytest.raises(Refused):
                accepting().take(Frame(FrameType.ANSWER, 0, inside))
    with pytest.raises(Refused):
        accepting().take(Decoder().feed(ha_fuzz.replayed(rng))[0])


@for_each("seed", range(20))
def test_a_peer_with_the_secret_and_damaged_facts_is_refused_and_nothing_worse(seed: int) -> None:
    # A node of another release: its proof is right and its fields are unknown here.
    rng = Random(seed)
    listens = accepting()
    challenge = bytes(listens.begin().payload)
    genuine = bytes(sent(connecting().take(listens.begin())).payload)[:-32]
    for body in damaged(rng, genuine, 60):
        proof = handshake._proof(SECRET, b"answer", challenge, body)
        reason: Reason | None = None
        try:
            found = accepting().take(Frame(FrameType.ANSWER, 0, body + proof))
            assert found.peer is not None
            assert found.peer.member.node in NODES
        except Refused as refused:
            reason = refused.reason
        assert reason is not Reason.WRONG_SECRET


@for_each("seed", range(50))
def test_no_damaged_welcome_is_believed(seed: int) -> None:
    listens = accepting()
    welcome = sent(listens.take(sent(connecting().take(listens.begin()))))
    for inside in damaged(Random(seed), bytes(welcome.payload), 60):
        connects = connecting()
        connects.take(listens.begin())
        if inside != welcome.payload:
            with pytest.raises(Refused):
                connects.take(Frame(FrameType.WELCOME, 0, inside))


def test_every_frame_of_the_handshake_fits_its_limit() -> None:
    longest = Identity("c" * 255, "g" * 255, "n" * 255, "11" * 16, 1 << 62)
    nodes = ("m" * 255, longest.node)
    listens = Accepting(
        longest._replace(node="m" * 255), accepted=[SECRET], nonce=b"1" * 32, nodes=nodes
    )
    connects = Connecting(longest, secret=SECRET, nonce=b"2" * 32, nodes=nodes, wanted="m" * 255)
    answer = sent(connects.take(listens.begin()))
    welcome = sent(listens.take(answer))
    for frame in (answer, welcome):
        assert Decoder(size_max=handshake.FRAME_SIZE_MAX).feed(encode(frame)) == [frame]


def test_a_short_secret_or_nonce_is_our_own_mistake() -> None:
    with pytest.raises(ValueError, match="15 bytes"):
        accepting(secret=b"x" * 15)
    with pytest.raises(ValueError, match="a nonce of 3"):
        Connecting(CONNECTS, secret=SECRET, nonce=b"abc", nodes=NODES, wanted="n0")


def test_reasons_have_the_names_that_status_shows() -> None:
    assert [reason.code for reason in Reason] == [
        "out-of-order",
        "wrong-secret",
        "protocol-version",
        "foreign-cluster",
        "foreign-group",
        "same-name",
        "unknown-node",
        "wrong-node",
        "file-size-differs",
    ]
