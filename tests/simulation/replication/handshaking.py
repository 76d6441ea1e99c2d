"""The handshake of each simulated connection, run by the product's code.

Every connection does the real handshake once correctly, and once with one of the mistakes below in
turn. A refused peer gets the reason if it knows the secret, and otherwise no answer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from services.ha.lease.value import Member
from services.ha.wire.frames import Frame, FrameType
from services.ha.wire.handshake import Accepting, Connecting, Identity, Peer, Reason, Refused
from services.ha.wire.versions import Versions, common
from tests.simulation.replication.violation import Violation

SECRET: Final = b"known to the nodes of the group"
NO_VOLUME: Final = "0" * 32
"""Incarnation of a store without a group."""
FILE_SIZE: Final = 8192
OLD, NEW = Versions(2, 2), Versions(3, 3)


class Side(NamedTuple):
    """What one of two nodes knows."""

    own: Identity
    nodes: tuple[str, ...]
    versions: Versions
    nonce: bytes
    wanted: str = ""
    """Expected peer of the side that connects."""
    secret: bytes = SECRET


Case = tuple[str, Reason, Callable[[Side], Side], Callable[[Side], Side]]


def _is(**changes: Any) -> Callable[[Side], Side]:
    return lambda side: side._replace(own=side.own._replace(**changes))


def _has(**changes: Any) -> Callable[[Side], Side]:
    return lambda side: side._replace(**changes)


def _same(side: Side) -> Side:
    return side


REFUSED: Final[tuple[Case, ...]] = (
    ("another cluster", Reason.FOREIGN_CLUSTER, _is(cluster="another"), _same),
    ("another group", Reason.FOREIGN_GROUP, _is(group="another"), _same),
    ("an unknown node", Reason.UNKNOWN_NODE, _is(node="stranger"), _same),
    ("the wrong node", Reason.WRONG_NODE, _has(wanted="elsewhere"), _same),
    ("its own name", Reason.SAME_NAME, _is(node="stranger"), _is(node="stranger")),
    ("other files", Reason.FILE_SIZE_DIFFERS, _is(file_size=2 * FILE_SIZE), _same),
    ("a later version", Reason.PROTOCOL_VERSION, _has(versions=NEW), _has(versions=OLD)),
    ("an older version", Reason.PROTOCOL_VERSION, _has(versions=OLD), _has(versions=NEW)),
)
"""What is wrong, the reason of the refusal, and the changes of the connecting and the accepting
side."""


def check_handshake(
    one: Member,
    other: Member,
    versions: tuple[Versions, Versions],
    nodes: tuple[str, ...],
    turn: int,
) -> None:
    """Let one connect to other. turn: number of the connection. Raises Violation."""
    connects = Side(_identity(one), nodes, versions[0], _nonce(turn, 1), other.node)
    accepts = Side(_identity(other), nodes, versions[1], _nonce(turn, 2))
    _check_welcome(connects, accepts)
    extra = (_check_silence, _check_forged, _check_order, _check_known)
    case = turn % (len(REFUSED) + len(extra))
    if case < len(REFUSED):
        _check_refusal(connects, accepts, REFUSED[case])
    else:
        extra[case - len(REFUSED)](connects, accepts)


def _identity(member: Member) -> Identity:
    return Identity("simulated", "g0", member.node, member.incarnation or NO_VOLUME, FILE_SIZE)


def _nonce(turn: int, side: int) -> bytes:
    return turn.to_bytes(16) + side.to_bytes(16)


def _both(connects: Side, accepts: Side) -> tuple[Connecting, Accepting]:
    connecting = Connecting(
        connects.own,
        secret=connects.secret,
        nonce=connects.nonce,
        nodes=connects.nodes,
        wanted=connects.wanted,
        versions=connects.versions,
    )
    accepting = Accepting(
        accepts.own,
        accepted=[accepts.secret],
        nonce=accepts.nonce,
        nodes=accepts.nodes,
        versions=accepts.versions,
    )
    return connecting, accepting


def _answer(connecting: Connecting, accepting: Accepting) -> Frame:
    """What the connecting side sends after the first frame."""
    step = connecting.take(accepting.begin())
    if step.send is None or step.peer is not None:
        raise Violation(f"a node that received a nonce answers {step}")
    return step.send


def _check_welcome(connects: Side, accepts: Side) -> None:
    """Check that both sides know the identity of the other and use the same version."""
    version = common(connects.versions, accepts.versions)
    connecting, accepting = _both(connects, accepts)
    accepted = accepting.take(_answer(connecting, accepting))
    if accepted.send is None or accepted.peer != _peer(connects, version):
        raise Violation(f"{connects.own} connects to {accepts.own}, which answers {accepted}")
    connected = connecting.take(accepted.send)
    if connected.send is not None or connected.peer != _peer(accepts, version):
        raise Violation(f"{connects.own} is accepted by {accepts.own}, and answers {connected}")


def _peer(side: Side, version: int | None) -> Peer:
    assert version is not None, "neighbouring releases speak with each other"
    return Peer(Member(side.own.node, side.own.incarnation), version)


def _check_refusal(connects: Side, accepts: Side, case: Case) -> None:
    """Check that a peer which does not fit and knows the secret gets the reason."""
    what, reason, differs, differs_there = case
    connecting, accepting = _both(differs(connects), differs_there(accepts))
    answer = _answer(connecting, accepting)
    refused = _refused(lambda: accepting.take(answer), what, reason)
    if refused.answer is None:
        raise Violation(f"{what} is refused with {reason.code} without an answer")
    refusal = refused.answer
    _refused(lambda: connecting.take(refusal), f"{what}, at the other side", reason)


def _check_silence(connects: Side, accepts: Side) -> None:
    """Check that a peer without the secret gets no answer, nor one that repeats recorded frames."""
    connecting, accepting = _both(connects._replace(secret=b"guessed by a stranger"), accepts)
    guessed = _answer(connecting, accepting)
    _must_be_silent(lambda: accepting.take(guessed), "a wrong secret")
    overheard = _answer(*_both(connects, accepts))
    _, later = _both(connects, accepts._replace(nonce=accepts.nonce[::-1]))
    later.begin()
    _must_be_silent(lambda: later.take(overheard), "an answer to another nonce")


def _check_forged(connects: Side, accepts: Side) -> None:
    """Check that no bit of a proof can be changed on its way."""
    at = int.from_bytes(connects.nonce[:16])
    connecting, accepting = _both(connects, accepts)
    answer = _answer(connecting, accepting)
    _must_be_silent(lambda: accepting.take(_flipped(answer, at)), "a changed answer")
    connecting, accepting = _both(connects, accepts)
    welcome = accepting.take(_answer(connecting, accepting)).send
    assert welcome is not None, "it was welcome before"
    forged = _flipped(welcome, at)
    _refused(lambda: connecting.take(forged), "a changed welcome", Reason.WRONG_SECRET)


def _flipped(frame: Frame, at: int) -> Frame:
    payload = bytearray(frame.payload)
    payload[at * 7 % len(payload)] ^= 1 << at % 8
    return frame._replace(payload=bytes(payload))


def _check_order(connects: Side, accepts: Side) -> None:
    """Check that each frame is accepted once and only in its turn."""
    connecting, accepting = _both(connects, accepts)
    first = accepting.begin()
    _refused(lambda: accepting.take(first), "its own first frame", Reason.OUT_OF_ORDER)
    early = Frame(FrameType.WELCOME, 0, b"")
    _refused(lambda: connecting.take(early), "a welcome to nothing", Reason.OUT_OF_ORDER)
    answer = _answer(connecting, accepting)
    accepting.take(answer)
    _refused(lambda: accepting.take(answer), "a second answer", Reason.OUT_OF_ORDER)
    _refused(lambda: connecting.take(first), "a second nonce", Reason.OUT_OF_ORDER)
    mirror, reflecting = _both(connects, accepts._replace(nonce=connects.nonce))
    own = reflecting.begin()
    _refused(lambda: mirror.take(own), "its own nonce", Reason.OUT_OF_ORDER)


def _check_known(connects: Side, accepts: Side) -> None:
    """Check that the connecting side verifies the identity of its peer itself."""
    connecting, accepting = _both(connects._replace(nodes=(connects.own.node,)), accepts)
    welcome = accepting.take(_answer(connecting, accepting)).send
    assert welcome is not None, "it was welcome before"
    _refused(lambda: connecting.take(welcome), "an unknown host", Reason.UNKNOWN_NODE)
    closed, _ = _both(connects, accepts)
    if closed.ended().reason is not Reason.OUT_OF_ORDER:
        raise Violation("a connection that is closed at once ends with another reason")


def _must_be_silent(take: Callable[[], object], what: str) -> None:
    if _refused(take, what, Reason.WRONG_SECRET).answer is not None:
        raise Violation(f"{what} is answered")


def _refused(take: Callable[[], object], what: str, reason: Reason) -> Refused:
    try:
        taken = take()
    except Refused as refused:
        if refused.reason is not reason or not refused.detail:
            raise Violation(f"{what} is refused as {refused}, not {reason.code}") from refused
        return refused
    raise Violation(f"{what} is taken in a handshake: {taken}")
