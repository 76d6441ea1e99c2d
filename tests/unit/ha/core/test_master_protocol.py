from __future__ import annotations

import logging

import pytest
from msgspec.structs import replace

from services.ha.core.catch_up import GENTLE_SIZE, WINDOW_SIZE
from services.ha.core.effects import Close, Effect, Note, Send, Stream
from services.ha.core.master_protocol import (
    CONFIRM_SEND_MS,
    STREAM_SIZE_MAX,
    MasterLink,
    MasterLog,
)
from services.ha.wire import payloads
from services.ha.wire.payloads import (
    TABLE_ENTRIES_MAX,
    Ack,
    Append,
    Hello,
    HelloOk,
    Payload,
    ResyncReason,
    ResyncRequired,
)
from services.ha.wire.versions import SPOKEN
from shared.cluster.time_rules import LOCAL
from tests.support.ha_links import FILE_SIZE, SLAVE, entry

EPOCH = 7
TABLE = (entry(3, 0), entry(5, 400_000), entry(7, 900_000))
END = 1_000_000
OWN = MasterLog(TABLE, 0, END, 500)
HELLO = Hello("g0", "n1", "11" * 16, SPOKEN.highest, FILE_SIZE, EPOCH, 0, 1000, 1000, 0, TABLE[:1])


def crc_before(end: int, size: int) -> int | None:
    return end ^ size


def new_link(now_ms: int = 0) -> MasterLink:
    return MasterLink(
        5,
        SLAVE,
        epoch=EPOCH,
        group="g0",
        version=SPOKEN.highest,
        file_size=FILE_SIZE,
        rules=LOCAL,
        now_ms=now_ms,
    )


def greeted(point: int = 1000, own: MasterLog = OWN) -> MasterLink:
    link = new_link()
    table = tuple(one for one in own.table if one.start < point)
    hello = replace(HELLO, end=point, durable=point, table=table)
    link.hello(hello, own, crc_before, 0)
    return link


def streaming(point: int = 1000, own: MasterLog = OWN) -> MasterLink:
    link = greeted(point, own)
    assert link.ack(Ack(point, point, 0), own, 0) == []
    return link


def said(effects: list[Effect]) -> list[Payload]:
    """Payloads of the Send and Stream effects; every frame carries the epoch."""
    found = []
    for effect in effects:
        if isinstance(effect, Send):
            assert effect.frame.epoch == EPOCH
            found.append(payloads.parse(effect.frame))
        elif isinstance(effect, Stream):
            assert effect.frame.epoch == EPOCH
            whole = bytes(effect.frame.payload) + bytes(effect.size)
            found.append(payloads.parse(effect.frame._replace(payload=whole)))
    return found


def appends(effects: list[Effect]) -> list[Append]:
    return [one for one in said(effects) if isinstance(one, Append)]


def close_reason(effects: list[Effect]) -> str:
    assert isinstance(effects[-1], Close), effects
    return effects[-1].reason


def test_hello_is_answered_with_point_checksum_and_the_table_from_the_common_entry_on() -> None:
    link = new_link()
    hello = replace(HELLO, end=950_000, durable=900_000, table=TABLE[:2])
    expected = HelloOk(900_000, 900_000 ^ 65_536, 65_536, 0, END, 500, TABLE[1:])
    assert said(link.hello(hello, OWN, crc_before, 0)) == [expected]


def test_no_end_of_hello_counts_and_nothing_is_streamed_before_the_first_ack() -> None:
    link = greeted()
    assert link.acked_end is None
    assert link.stream(OWN, 10_000) == []
    link.ack(Ack(1000, 900, 0), OWN, 0)
    assert link.acked_end == 900
    assert appends(link.stream(OWN, 0))[0].offset == 1000


def test_an_empty_slave_gets_the_whole_table() -> None:
    hello = replace(HELLO, end=0, durable=0, table=())
    (ok,) = said(new_link().hello(hello, OWN, crc_before, 0))
    assert ok == HelloOk(0, 0, 0, 0, END, 500, TABLE)


def test_a_slave_more_epochs_behind_than_a_frame_holds_finds_the_common_one() -> None:
    table = tuple(entry(number + 1, number * 100) for number in range(2500))
    own = MasterLog(table, 0, 250_000, 500)
    hello = replace(HELLO, end=1100, durable=1100, table=table[:12])
    (ok,) = said(new_link().hello(hello, own, crc_before, 0))
    assert isinstance(ok, HelloOk)
    assert ok.table[0] == table[11]
    assert len(ok.table) == TABLE_ENTRIES_MAX


def test_a_slave_without_a_divergence_point_must_copy_everything() -> None:
    link = new_link()
    effects = link.hello(replace(HELLO, table=(entry(4, 0),)), OWN, crc_before, 0)
    assert said(effects) == [ResyncRequired(ResyncReason.NO_COMMON_EPOCH, 0, END)]
    assert "resync" in close_reason(effects)
    assert link.closed


@pytest.mark.parametrize(
    "hello",
    [
        replace(HELLO, node="n2"),
        replace(HELLO, incarnation="22" * 16),
        replace(HELLO, group="g1"),
        replace(HELLO, file_size=FILE_SIZE * 2),
        replace(HELLO, version=SPOKEN.lowest),
    ],
)
def test_a_hello_of_another_node_than_the_handshakes_peer_closes_the_link(hello: Hello) -> None:
    link = new_link()
    effects = link.hello(hello, OWN, crc_before, 0)
    assert len(effects) == 1
    assert close_reason(effects)
    assert link.hello(HELLO, OWN, crc_before, 0) == []


def test_a_slave_may_ask_again_only_with_a_shorter_table_and_before_its_first_ack() -> None:
    link = new_link()
    hello = replace(HELLO, end=450_000, durable=0, table=TABLE[:2])
    link.hello(hello, OWN, crc_before, 0)
    again = replace(hello, end=400_000, table=TABLE[:1])
    (ok,) = said(link.hello(again, OWN, crc_before, 0))
    assert isinstance(ok, HelloOk)
    assert ok.point == 400_000
    assert "not shorter" in close_reason(link.hello(again, OWN, crc_before, 0))
    assert "after the first ACK" in close_reason(streaming().hello(HELLO, OWN, crc_before, 0))


def test_bytes_that_cannot_be_read_close_the_link() -> None:
    effects = new_link().hello(HELLO, OWN, lambda end, size: None, 0)
    assert "cannot be read" in close_reason(effects)


@pytest.mark.parametrize(
    "ack",
    [
        Ack(END + 1, 1000, 0),  # beyond the master's end
        Ack(1000, 1001, 0),  # durable beyond appended
        Ack(1001, 1000, 0),  # nothing was sent yet
        Ack(999, 999, 0),  # not where the link begins
        Ack(1000, 1000, 1),  # a nonce that was not sent
    ],
)
def test_a_first_ack_that_cannot_be_true_is_refused_and_counts_nothing(ack: Ack) -> None:
    link = greeted()
    effects = link.ack(ack, OWN, 0)
    assert isinstance(effects[0], Note)
    assert (effects[0].event, effects[0].level) == ("ack-refused", logging.ERROR)
    assert effects[0].alarm is None  # a slave with wrong ACKs does not make the master unready
    assert close_reason(effects)
    assert link.acked_end is None
    assert link.closed
    assert link.ack(Ack(1000, 1000, 0), OWN, 0) == []


@pytest.mark.parametrize(
    "ack",
    [
        Ack(END + 1, 5000, 3),
        Ack(5000, 5001, 3),
        Ack(4999, 4000, 3),  # appended decreases
        Ack(6000, 3999, 3),  # durable decreases
        Ack(6000, 5000, 1),  # the nonce decreases
        Ack(6000, 5000, 99),
    ],
)
def test_a_later_ack_that_cannot_be_true_is_refused_and_the_member_counts_no_more(
    ack: Ack,
) -> None:
    link = streaming()
    link.stream(OWN, 0)
    assert link.ack(Ack(5000, 4000, 2), OWN, 0) == []
    assert link.acked_end == 4000
    effects = link.ack(ack, OWN, 0)
    assert isinstance(effects[0], Note)
    assert link.acked_end is None


def test_an_ack_before_the_divergence_check_closes_the_link() -> None:
    assert "before HELLO_OK" in close_reason(new_link().ack(Ack(0, 0, 0), OWN, 0))


def test_an_ack_of_more_than_was_sent_is_refused_although_the_log_has_it() -> None:
    own = OWN._replace(end=2000)
    link = streaming(1000, own)
    link.stream(own, 0)
    effects = link.ack(Ack(3000, 3000, 1), OWN, 0)
    assert "only 2000 was sent" in close_reason(effects)


def test_a_frame_holds_one_epoch_and_at_most_its_limit() -> None:
    link = streaming()
    sent = appends(link.stream(OWN, 0))
    assert [one.nonce for one in sent] == list(range(1, len(sent) + 1))
    at = 1000
    for one in sent:
        assert one.offset == at
        assert 0 < one.size <= STREAM_SIZE_MAX
        at += one.size
        (index,) = [i for i, it in enumerate(TABLE) if it.epoch == one.data_epoch]
        assert one.epoch_start == TABLE[index].start <= one.offset
        assert index + 1 == len(TABLE) or at <= TABLE[index + 1].start
        assert one.confirm == 500
    assert at == END
    assert link.stream(OWN, 0) == []


def test_bytes_in_flight_never_pass_the_window() -> None:
    own = OWN._replace(end=100 << 20)
    link = streaming(own=own)
    sent = sum(one.size for one in appends(link.stream(own, 0)))
    assert sent == WINDOW_SIZE
    assert link.stream(own, 1) == []
    link.ack(Ack(1000 + 5000, 1000, 1), own, 2)  # appended bytes make room, not durable ones
    assert [one.size for one in appends(link.stream(own, 2))] == [5000]


def test_a_slave_that_no_sender_waits_for_takes_less_while_others_send() -> None:
    own = OWN._replace(end=100 << 20)
    link = streaming(own=own)
    assert sum(one.size for one in appends(link.stream(own, 0, awaited=False))) == GENTLE_SIZE
    assert sum(one.size for one in appends(link.stream(own, 0))) == WINDOW_SIZE - GENTLE_SIZE


def test_an_idle_link_carries_heartbeats_that_say_what_comes_next() -> None:
    link = streaming(END)
    assert link.stream(OWN, LOCAL.heartbeat_ms - 1) == []
    (beat,) = appends(link.stream(OWN, LOCAL.heartbeat_ms))
    assert (beat.size, beat.offset, beat.data_epoch, beat.epoch_start) == (0, END, 7, 900_000)
    assert link.stream(OWN, LOCAL.heartbeat_ms + 1) == []
    (beat,) = appends(link.stream(OWN, 2 * LOCAL.heartbeat_ms))
    assert beat.nonce == 2


def test_an_idle_link_hears_of_a_moved_confirm_offset_soon_but_not_at_once() -> None:
    link = streaming(END)
    moved = OWN._replace(confirm=600)
    assert link.stream(moved, CONFIRM_SEND_MS - 1) == []
    (beat,) = appends(link.stream(moved, CONFIRM_SEND_MS))
    assert (beat.size, beat.confirm) == (0, 600)
    assert link.stream(moved, 5 * CONFIRM_SEND_MS) == []


def test_the_confirm_offset_sent_on_a_link_never_decreases() -> None:
    link = streaming(END)
    link.stream(OWN._replace(confirm=600), LOCAL.heartbeat_ms)
    (beat,) = appends(link.stream(OWN._replace(confirm=550), 2 * LOCAL.heartbeat_ms))
    assert beat.confirm == 600


def test_bytes_that_retention_removed_or_no_epoch_covers_close_the_link() -> None:
    link = streaming()
    assert "retention" in close_reason(link.stream(OWN._replace(first_offset=1001), 0))
    link = streaming()
    assert "no epoch" in close_reason(link.stream(OWN._replace(table=TABLE[1:]), 0))


def test_a_link_is_dead_after_the_limit_without_a_frame() -> None:
    link = new_link(now_ms=100)
    assert not link.dead(100 + LOCAL.link_dead_ms)
    assert link.dead(101 + LOCAL.link_dead_ms)
    link.heard(500)
    assert not link.dead(500 + LOCAL.link_dead_ms)
    link.hello(HELLO, OWN, crc_before, 900)
    link.ack(Ack(1000, 1000, 0), OWN, 1000)
    assert not link.dead(1000 + LOCAL.link_dead_ms)


def test_lag_is_the_time_since_the_slave_had_all_that_the_master_had_then() -> None:
    link = streaming()
    link.stream(OWN, 100)  # from here on it has to reach END
    assert link.lag_ms(END, 150) == 150
    grown = OWN._replace(end=END + 5000)
    link.stream(grown, 200)
    link.ack(Ack(END, END, 1), grown, 250)
    assert link.lag_ms(grown.end, 300) == 200  # it had everything of time 100
    link.stream(grown, 310)
    link.ack(Ack(grown.end, grown.end, 2), grown, 400)
    assert link.lag_ms(grown.end, 5000) == 0
    # A long idle time is no lag: lag begins when something is appended.
    link.stream(grown, 5000)
    assert link.lag_ms(grown.end + 1, 5050) == 50


def test_a_slave_that_is_alive_and_never_catches_up_lags_more_and_more() -> None:
    link = streaming()
    for now_ms in range(0, 3000, 50):
        own = OWN._replace(end=END + now_ms * 100)
        link.stream(own, now_ms)
        link.ack(Ack(1000 + now_ms, 1000 + now_ms, 1), own, now_ms)
    assert link.lag_ms(own.end, 3000) == 3000


def test_an_ack_beyond_an_end_that_moved_back_is_refused() -> None:
    link = streaming()
    link.stream(OWN, 0)
    effects = link.ack(Ack(2000, 1000, 1), OWN._replace(end=1999), 0)
    assert "log ends at 1999" in close_reason(effects)
