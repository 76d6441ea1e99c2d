from __future__ import annotations

from random import Random

import pytest

from services.ha import handshake
from services.ha.frames import Decoder, Frame, FrameType, encode
from services.ha.handshake import Accepting, Connecting, Identity, Peer, Reason, Refused
from services.ha.lease.value import Member
from tests.support import ha_fuzz
from tests.support.fuzz_cases import damaged

SECRET = b"sixteen bytes or more"
NODES = ("n0", "n1", "n2")
LISTENS = Identity("tidemark", "g0", "n0", "00" * 16, 1 << 30)
CONNECTS = Identity("tidemark", "g0", "n1", "11" * 16, 1 << 30)


def accepting(own: Identity = LISTENS, *, secret: bytes = SECRET, nonce: int = 1) -> Accepting:
    return Accepting(own, secret=secret, nonce=bytes([nonce]) * 32, nodes=NODES)


def connecting(
    own: Identity = CONNECTS, *, secret: bytes = SECRET, nonce: int = 2, wanted: str = "n0"
) -> Connecting:
    nonce_bytes = bytes([nonce]) * 32
    return Connecting(own, secret=secret, nonce=nonce_bytes, nodes=NODES, wanted=wanted)


def sent(step: handshake.Step) -> Frame:
    assert step.send is not None
    return step.send


def shake(listens: Accepting, connects: Connecting) -> tuple[Peer | None, Peer | None]:
    """Who each side found: first what the listening side did."""
    found = listens.take(sent(connects.take(listens.begin())))
    return found.peer, connects.take(sent(found)).peer


def test_two_nodes_that_know_the_secret_find_each_other() -> None:
    assert shake(accepting(), connecting()) == (
        Peer(Member("n1", "11" * 16), handshake.VERSION),
        Peer(Member("n0", "00" * 16), handshake.VERSION),
    )


def test_a_peer_without_the_secret_is_told_nothing_but_the_challenge() -> None:
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
    with pytest.raises(Refused) as told:
        connects.take(refused.value.answer)
    assert told.value.reason is reason
    assert refused.value.detail in told.value.detail


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


def test_the_lower_version_of_both_is_spoken(monkeypatch: pytest.MonkeyPatch) -> None:
    old = accepting()
    challenge = old.begin()
    monkeypatch.setattr(handshake, "VERSION", 3)
    connects = connecting()
    answer = sent(connects.take(challenge))
    monkeypatch.setattr(handshake, "VERSION", 1)
    welcome = old.take(answer)
    assert welcome.peer == Peer(Member("n1", "11" * 16), 1)
    assert connects.take(sent(welcome)).peer == Peer(Member("n0", "00" * 16), 1)


def test_a_newer_listener_speaks_the_older_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handshake, "VERSION", 3)
    listens = accepting()
    challenge = listens.begin()
    monkeypatch.setattr(handshake, "VERSION", 2)
    connects = connecting()
    answer = sent(connects.take(challenge))
    monkeypatch.setattr(handshake, "VERSION", 3)
    assert listens.take(answer).peer == Peer(Member("n1", "11" * 16), 2)


def test_versions_without_a_common_one_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    challenge = accepting().begin()
    monkeypatch.setattr(handshake, "VERSION", 3)
    monkeypatch.setattr(handshake, "VERSION_MIN", 2)
    with pytest.raises(Refused, match="version"):
        connecting().take(challenge)


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


@pytest.mark.parametrize("seed", range(50))
def test_no_damaged_or_hostile_answer_is_welcomed(seed: int) -> None:
    rng = Random(seed)
    genuine = bytes(sent(connecting().take(accepting().begin())).payload)
    for inside in damaged(rng, genuine, 60):
        if inside != genuine:
            with pytest.raises(Refused):
                accepting().take(Frame(FrameType.ANSWER, 0, inside))
    with pytest.raises(Refused):
        accepting().take(Decoder().feed(ha_fuzz.replayed(rng))[0])


@pytest.mark.parametrize("seed", range(20))
def test_a_peer_with_the_secret_and_damaged_facts_is_refused_and_nothing_worse(seed: int) -> None:
    # A node of another release, say: its proof is right and its facts are not ours.
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


@pytest.mark.parametrize("seed", range(50))
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
        longest._replace(node="m" * 255), secret=SECRET, nonce=b"1" * 32, nodes=nodes
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
        "version",
        "foreign-cluster",
        "foreign-group",
        "same-name",
        "unknown-node",
        "wrong-node",
        "file-size-differs",
    ]
