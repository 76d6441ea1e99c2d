"""Connections to the other nodes, and their statuses."""

from __future__ import annotations

from msgspec.structs import replace

from services.ha.core.effects import Close, Connect, Effect, Send
from services.ha.core.peers import RECONNECT_MS, RECONNECT_MS_MAX, UNANSWERED_MS, Peers
from services.ha.core.replica_context import ReplicaContext
from services.ha.lease.value import Member
from services.ha.wire import payloads
from services.ha.wire.frames import FrameType
from services.ha.wire.payloads import Status
from services.ha.wire.versions import SPOKEN
from shared.cluster.time_rules import LOCAL
from tests.unit.ha.core.test_campaign import replica
from tests.unit.ha.core.test_founding import status_of

A = Member("a", "1" * 32)


def tick(
    context: ReplicaContext, peers: Peers, now_ms: int, urgent: str | None = None
) -> list[Effect]:
    context.now_ms = now_ms
    peers.tick(4, urgent)
    return context.out.take()


def made() -> tuple[ReplicaContext, Peers]:
    context = replica()
    peers = Peers(context)
    assert tick(context, peers, 1000) == [Connect("a"), Connect("c")]
    peers.up(1, A, outbound=True, version=SPOKEN.highest)
    return context, peers


def test_a_node_is_connected_to_once_and_asked_every_heartbeat() -> None:
    context, peers = made()
    (ask,) = tick(context, peers, 1050)
    assert isinstance(ask, Send)
    assert (ask.link, ask.frame.type) == (1, FrameType.STATUS)
    assert tick(context, peers, 1050 + LOCAL.heartbeat_ms - 1) == []
    assert len(tick(context, peers, 1050 + LOCAL.heartbeat_ms)) == 1


def test_a_node_that_is_about_to_change_is_asked_every_time() -> None:
    context, peers = made()
    assert len(tick(context, peers, 1050, "a")) == 1
    assert len(tick(context, peers, 1100, "a")) == 1


def test_a_node_that_is_not_there_is_tried_more_and_more_seldom() -> None:
    context, peers = made()
    pauses, now = [], 1000
    for _ in range(6):
        peers.down(0, "c", "refused")
        before = now
        while Connect("c") not in tick(context, peers, now):
            now += 10
        pauses.append(now - before)
        peers.heard(1)
    assert pauses[0] == 2 * RECONNECT_MS
    assert pauses[-1] == RECONNECT_MS_MAX
    assert sorted(pauses) == pauses


def test_a_connection_that_is_being_closed_is_not_made_again_before_it_is_gone() -> None:
    context, peers = made()
    peers.close(1, "another epoch")
    assert context.out.take() == [Close(1, "another epoch")]
    assert not peers.open(1)
    assert tick(context, peers, 1000 + UNANSWERED_MS - 100) == []
    peers.down(1, "a", "closed")
    assert Connect("a") in tick(context, peers, 1000 + UNANSWERED_MS)


def test_a_node_that_says_nothing_is_cut_off() -> None:
    context, peers = made()
    effects = tick(context, peers, 1001 + LOCAL.link_dead_ms)
    assert any(isinstance(effect, Close) and effect.link == 1 for effect in effects)


def test_only_what_was_said_lately_is_fresh() -> None:
    context, peers = made()
    assert peers.fresh("a") is None
    peers.received_status(1, status_of("a"))
    assert peers.fresh("a") is not None
    context.now_ms += LOCAL.link_dead_ms + LOCAL.heartbeat_ms + 1
    assert peers.fresh("a") is None


def test_a_status_that_waited_while_this_node_stood_still_is_not_fresh() -> None:
    # 1. This node is paused, and a's answer arrives. 2. a dies. 3. This node continues. It took the
    #    answer for new: it showed a as a master with a connection, and ranked itself behind it.
    context, peers = made()
    context.now_ms += 60_000
    peers.received_status(1, replace(status_of("a"), asked_ms=1000))
    assert peers.fresh("a") is None
    peers.received_status(1, status_of("a"))  # sent without a request, right after that answer
    assert peers.fresh("a") is None
    peers.received_status(1, replace(status_of("a"), asked_ms=context.now_ms - 1))
    assert peers.fresh("a") is not None


def test_a_node_speaks_for_itself_alone() -> None:
    _, peers = made()
    peers.received_status(1, status_of("c"))
    assert peers.by_node["c"].status is None
    assert peers.by_node["a"].status is None


def test_a_stranger_is_not_kept() -> None:
    context, peers = made()
    assert peers.up(9, Member("x", "1" * 32), outbound=True, version=SPOKEN.highest) is None
    assert context.out.take() == [Close(9, "not a node of the group")]


def test_what_another_one_saw_of_the_lease_makes_an_older_one_go_back() -> None:
    context, peers = made()
    peers.received_status(1, replace(status_of("a"), seen_epoch=9, in_sync_version=3))
    assert context.session.seen == (9, 3)


def test_all_are_asked_before_anything_is_begun_and_the_silent_ones_not_for_long() -> None:
    context, peers = made()
    assert not peers.surveyed
    peers.received_status(1, status_of("a"))
    assert not peers.surveyed
    peers.down(0, "c", "refused")
    assert peers.surveyed
    context, peers = made()
    assert not peers.surveyed
    context.now_ms += LOCAL.heartbeat_ms
    assert peers.surveyed


def test_each_is_asked_in_the_version_that_was_agreed_on_with_it() -> None:
    context, peers = made()
    for link, version, now_ms in ((1, 2, 1050), (5, 3, 1100)):
        peers.down(link - 4, "a", "closed")
        peers.up(link, A, outbound=True, version=version)
        asks = [effect for effect in tick(context, peers, now_ms) if isinstance(effect, Send)]
        assert [payloads.parse(ask.frame, version) for ask in asks] == [Status(now_ms)]
    assert [peers.version(link) for link in (5, 1)] == [3, 2]


def test_the_clock_of_a_peer_is_known_from_its_answer_until_the_link_is_made_anew() -> None:
    context, peers = made()
    context.now_ms = 1060
    peers.received_status(1, replace(status_of("a"), asked_ms=1050, wall_ms=2_000_005))
    skew = peers.by_node["a"].clock.skew(2_000_000)
    assert skew is not None
    assert skew.ahead_ms == -1050
    peers.up(5, A, outbound=True, version=2)
    assert peers.by_node["a"].clock.skew(2_000_000) is None


def test_a_node_that_connects_again_has_left_its_earlier_connection() -> None:
    # Its machine lost power: this end of the earlier connection was never closed. With 64 of them,
    # the port took no further connection.
    context, peers = made()
    peers.up(2, A, outbound=False, version=SPOKEN.highest)
    peers.up(3, Member("c", "3" * 32), outbound=False, version=SPOKEN.highest)
    assert context.out.take() == []
    peers.up(4, A._replace(incarnation="4" * 32), outbound=False, version=SPOKEN.highest)
    (close,) = context.out.take()
    assert isinstance(close, Close)
    assert close.link == 2
    assert sorted(peers.incoming) == [3, 4]
    assert peers.open(1)
