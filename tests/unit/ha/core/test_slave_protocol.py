from __future__ import annotations

import itertools

import pytest
from msgspec.structs import replace

from services.ha.core.effects import Close, Copy, Effect, PersistTable, Publish, Send
from services.ha.core.slave_protocol import HELD_FRAMES_MAX, NO_COMMON_BYTES, SlaveLink, SlaveLog
from services.ha.core.truncation import CutPlan, HaltPlan, InOrder, LogsDiffer, ResyncPlan
from services.ha.wire import payloads
from services.ha.wire.payloads import (
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
from tidemark.formats.checkpoint import Slot

EPOCH = 7
TABLE = (entry(3, 0), entry(5, 400))
LOG = SlaveLog("g0", SLAVE, SPOKEN.highest, FILE_SIZE, EPOCH, 0, 1000, 1000, 300, TABLE)
OK = HelloOk(1000, 77, 1000, 0, 5000, 350, TABLE[1:])


def crc_before(end: int, size: int) -> int | None:
    return 77


def new_link(own: SlaveLog = LOG) -> SlaveLink:
    tokens = itertools.count(1).__next__
    return SlaveLink(6, epoch=EPOCH, own=own, new_token=tokens, rules=LOCAL, now_ms=0)


def in_order(own: SlaveLog = LOG, ok: HelloOk = OK) -> SlaveLink:
    link = new_link(own)
    link.hello()
    outcome, _ = link.hello_ok(ok, crc_before, 0)
    assert outcome == InOrder(own.end)
    return link


def test_leaving_is_said_once_and_with_every_acknowledgement_after_it() -> None:
    link = in_order()
    assert said(link.leave()) == [Ack(1000, 1000, 0, leaving=True)]
    assert link.leave() == []
    link.append(Append(EPOCH, TABLE[-1].start, 1000, 350, 1, 0, b""), 0)
    assert said(link.copied(1000, 1000)) == [Ack(1000, 1000, 1, leaving=True)]


def said(effects: list[Effect]) -> list[Payload]:
    sends = [effect for effect in effects if isinstance(effect, Send)]
    assert all(effect.frame.epoch == EPOCH for effect in sends)
    return [payloads.parse(effect.frame) for effect in sends]


def close_reason(effects: list[Effect]) -> str:
    assert isinstance(effects[-1], Close), effects
    return effects[-1].reason


def bytes_at(offset: int, size: int, *, nonce: int = 1, epoch: int = 5, start: int = 400) -> Append:
    return Append(epoch, start, offset, 350, nonce, size, b"x" * size)


def test_hello_says_who_and_what() -> None:
    (hello,) = said(new_link().hello())
    expected = Hello(
        "g0", "n1", "11" * 16, SPOKEN.highest, FILE_SIZE, EPOCH, 0, 1000, 1000, 300, TABLE
    )
    assert hello == expected


def test_in_order_is_acknowledged_at_once_data_or_not() -> None:
    link = new_link(LOG._replace(durable=900))
    outcome, effects = link.hello_ok(OK, crc_before, 0)
    assert outcome == InOrder(1000)
    assert said(effects) == [Ack(1000, 900, 0)]
    assert link.in_order


def test_where_rocketmq_wrote_is_kept_before_the_first_byte_comes() -> None:
    _, effects = new_link().hello_ok(replace(OK, foreign=(100, 900)), crc_before, 0)
    assert effects[0] == Publish(((Slot.FOREIGN_FROM, 100), (Slot.FOREIGN_UNTIL, 900)))
    assert said(effects[1:]) == [Ack(1000, 1000, 0)]


def test_a_point_before_the_end_is_cut_behind_a_closed_link() -> None:
    link = new_link()
    outcome, effects = link.hello_ok(replace(OK, point=700, crc_size=700), crc_before, 0)
    assert outcome == CutPlan(700, TABLE)
    assert close_reason(effects) == "CutPlan"
    assert said(effects) == []
    assert link.append(bytes_at(700, 10), 0) == []


def test_an_entry_without_bytes_is_cut_although_no_byte_is() -> None:
    link = new_link(LOG._replace(table=(*TABLE, entry(6, 1000))))
    outcome, _ = link.hello_ok(OK, crc_before, 0)
    assert outcome == CutPlan(1000, TABLE)


def test_a_point_below_the_confirm_checkpoint_halts() -> None:
    link = new_link(LOG._replace(confirm=701))
    outcome, effects = link.hello_ok(replace(OK, point=700, crc_size=700), crc_before, 0)
    assert outcome == HaltPlan(700, 701)
    assert close_reason(effects)


def test_of_a_damaged_master_only_what_comes_next_is_copied() -> None:
    doubted = LOG._replace(master_is_damaged=True)
    link = new_link(doubted)
    outcome, effects = link.hello_ok(replace(OK, crc=78), crc_before, 0)
    assert outcome == InOrder(1000, agrees=False)
    assert said(effects) == [Ack(1000, 1000, 0)]
    shorter = replace(OK, point=300, crc_size=300, crc=78, table=TABLE)
    outcome, _ = new_link(doubted).hello_ok(shorter, crc_before, 0)
    assert outcome == LogsDiffer(0, 300)


UNCONFIRMED = LOG._replace(confirm=0)
NONE_CONFIRMED = replace(OK, confirm=0)


def test_other_bytes_before_the_point_are_asked_about_where_the_confirmed_ones_end() -> None:
    link = new_link()
    outcome, effects = link.hello_ok(replace(OK, crc=78), crc_before, 0)
    assert outcome is None
    (hello,) = said(effects)
    assert isinstance(hello, Hello)
    assert (hello.end, hello.durable, hello.table) == (350, 350, TABLE[:1])
    earlier = replace(OK, point=350, crc_size=350, table=TABLE)
    outcome, _ = link.hello_ok(earlier, crc_before, 0)
    assert outcome == CutPlan(350, TABLE[:1])


def test_other_bytes_among_the_confirmed_ones_tell_that_one_log_is_damaged() -> None:
    link = new_link()
    link.hello_ok(replace(OK, crc=78), crc_before, 0)
    other = replace(OK, point=350, crc_size=250, crc=78, first_offset=100, table=TABLE)
    outcome, effects = link.hello_ok(other, crc_before, 0)
    assert outcome == LogsDiffer(100, 350)
    assert close_reason(effects)


def test_where_nothing_is_confirmed_other_bytes_are_asked_about_one_epoch_earlier() -> None:
    link = new_link(UNCONFIRMED)
    outcome, effects = link.hello_ok(replace(NONE_CONFIRMED, crc=78), crc_before, 0)
    assert outcome is None
    (hello,) = said(effects)
    assert isinstance(hello, Hello)
    assert (hello.end, hello.durable, hello.table) == (400, 400, TABLE[:1])
    earlier = replace(NONE_CONFIRMED, point=400, crc_size=400, table=TABLE)
    outcome, _ = link.hello_ok(earlier, crc_before, 0)
    assert outcome == CutPlan(400, TABLE[:1])


def test_other_bytes_before_every_divergence_point_mean_copying_everything() -> None:
    link = new_link(UNCONFIRMED)
    link.hello_ok(replace(NONE_CONFIRMED, crc=78), crc_before, 0)
    other = replace(NONE_CONFIRMED, point=400, crc_size=400, crc=78, table=TABLE)
    outcome, effects = link.hello_ok(other, crc_before, 0)
    assert outcome == ResyncPlan(0, NO_COMMON_BYTES)
    assert close_reason(effects)


def test_the_master_may_require_a_copy_of_everything() -> None:
    link = new_link()
    required = ResyncRequired(ResyncReason.BELOW_FIRST_OFFSET, 4096, 9000)
    outcome, effects = link.resync_required(required, 0)
    assert outcome == ResyncPlan(4096, "below_first_offset")
    assert close_reason(effects)
    assert in_order().resync_required(required, 0)[0] is None


@pytest.mark.parametrize(
    "ok",
    [
        replace(OK, table=()),  # no common entry, and this log holds bytes
        replace(OK, table=(entry(4, 10),)),  # not an entry of this log
        replace(OK, point=1001, crc_size=1001),  # behind this log's end
        replace(OK, table=TABLE, point=401, crc_size=401),  # behind the end of the common entry
        replace(OK, crc_size=10),  # fewer bytes than both have
        replace(OK, crc_size=0),
    ],
)
def test_an_answer_that_cannot_be_closes_the_link_and_cuts_nothing(ok: HelloOk) -> None:
    link = new_link()
    outcome, effects = link.hello_ok(ok, crc_before, 0)
    assert outcome is None
    assert close_reason(effects)
    assert link.closed


def test_own_bytes_that_cannot_be_read_close_the_link() -> None:
    outcome, effects = new_link().hello_ok(OK, lambda end, size: None, 0)
    assert outcome is None
    assert "cannot be read" in close_reason(effects)


def test_a_second_hello_ok_closes_the_link() -> None:
    _, effects = in_order().hello_ok(OK, crc_before, 0)
    assert "was not expected" in close_reason(effects)


def test_bytes_are_copied_in_order_and_acknowledged_when_the_log_has_them() -> None:
    link = in_order()
    assert link.append(bytes_at(1000, 30), 0) == [Copy(1000, b"x" * 30, True)]
    assert link.append(bytes_at(1030, 20, nonce=2), 0) == [Copy(1030, b"x" * 20, False)]
    assert link.received == 1050
    assert said(link.copied(1040, 1020)) == [Ack(1040, 1020, 2)]
    assert said(link.copied(1040, 1040)) == [Ack(1040, 1040, 2)]


@pytest.mark.parametrize(
    "append",
    [
        bytes_at(999, 10),
        bytes_at(1001, 10),
        bytes_at(1000, 10, nonce=2),  # one is missing
        bytes_at(1000, 10, nonce=0),
        bytes_at(1000, 10, epoch=3, start=0),  # an older epoch's
        bytes_at(1000, 10, epoch=5, start=401),  # the same epoch with another start
        bytes_at(1000, 10, epoch=6, start=900),  # a new one that does not start here
        bytes_at(1000, 10, epoch=8, start=1000),  # of an epoch above the master's own
        bytes_at(1001, 0),  # a heartbeat that names other bytes as the next ones
    ],
)
def test_anything_out_of_order_closes_the_link_and_copies_nothing(append: Append) -> None:
    link = in_order()
    effects = link.append(append, 0)
    assert [type(effect) for effect in effects] == [Close]
    assert link.received == 1000
    assert link.append(bytes_at(1000, 10), 0) == []
    assert link.copied(1000, 1000) == []


def test_a_frame_that_is_played_again_closes_the_link() -> None:
    link = in_order()
    link.append(bytes_at(1000, 30), 0)
    assert "APPEND 1 after 1" in close_reason(link.append(bytes_at(1000, 30), 0))


def test_bytes_before_the_divergence_check_close_the_link() -> None:
    assert "divergence" in close_reason(new_link().append(bytes_at(1000, 10), 0))


def test_the_entry_of_a_new_epoch_is_durable_before_its_first_byte() -> None:
    link = in_order()
    grown = (*TABLE, entry(7, 1000))
    first = bytes_at(1000, 10, nonce=1, epoch=7, start=1000)
    assert link.append(first, 0) == [PersistTable(1, grown)]
    # More bytes arrive meanwhile; nothing is copied, nothing acknowledged.
    assert link.append(bytes_at(1010, 5, nonce=2, epoch=7, start=1000), 0) == []
    assert link.append(bytes_at(1015, 0, nonce=3, epoch=7, start=1000), 0) == []
    assert link.table_persisted(99) == []
    effects = link.table_persisted(1)
    copies = [effect for effect in effects if isinstance(effect, Copy)]
    assert [(copy.offset, len(copy.data)) for copy in copies] == [(1000, 10), (1010, 5)]
    assert said(effects) == [Ack(1000, 1000, 3)]
    assert link.table == grown
    assert link.table_persisted(1) == []


def test_epochs_that_begin_close_to_each_other_are_persisted_one_by_one() -> None:
    link = in_order()
    one = bytes_at(1000, 10, nonce=1, epoch=6, start=1000)
    two = bytes_at(1010, 10, nonce=2, epoch=7, start=1010)
    assert link.append(one, 0) == [PersistTable(1, (*TABLE, entry(6, 1000)))]
    assert link.append(two, 0) == []
    grown = (*TABLE, entry(6, 1000), entry(7, 1010))
    assert link.table_persisted(1) == [Copy(1000, b"x" * 10, True), PersistTable(2, grown)]
    assert link.table_persisted(2) == [Copy(1010, b"x" * 10, False)]


def test_a_heartbeat_of_an_epoch_without_bytes_begins_none_here() -> None:
    link = in_order()
    effects = link.append(bytes_at(1000, 0, epoch=7, start=1000), 0)
    assert said(effects) == [Ack(1000, 1000, 1)]
    assert link.table == TABLE


def test_a_log_that_begins_inside_an_epoch_takes_its_entry_over() -> None:
    own = LOG._replace(first_offset=600, end=600, durable=600, confirm=0, table=())
    table = (entry(5, 400), entry(7, 900))
    ok = replace(OK, point=600, crc=0, crc_size=0, first_offset=600, table=table)
    link = in_order(own, ok)
    grown = (entry(5, 400),)
    assert link.append(bytes_at(600, 10), 0) == [PersistTable(1, grown)]
    assert link.table_persisted(1) == [Copy(600, b"x" * 10, True)]
    assert close_reason(in_order(own, ok).append(bytes_at(600, 10, start=601), 0))


@pytest.mark.parametrize("size", [0, 200_000])
def test_what_waits_for_an_entry_is_bounded(size: int) -> None:
    link = in_order()
    link.append(bytes_at(1000, 1, epoch=7, start=1000), 0)
    at = 1001
    for nonce in range(2, HELD_FRAMES_MAX + 3):
        effects = link.append(bytes_at(at, size, nonce=nonce, epoch=7, start=1000), 0)
        at += size
        if effects:
            break
    assert "no window" in close_reason(effects)


@pytest.mark.parametrize(("end", "durable"), [(999, 999), (1031, 1000), (1030, 999), (1010, 1020)])
def test_a_log_that_reports_what_cannot_be_acknowledges_nothing(end: int, durable: int) -> None:
    link = in_order()
    link.append(bytes_at(1000, 30), 0)
    effects = link.copied(end, durable)
    assert close_reason(effects)
    assert said(effects) == []


def test_confirm_is_what_the_master_confirmed_and_is_on_disk_and_never_decreases() -> None:
    link = new_link()
    assert link.confirm == 300  # the own checkpoint
    link.hello_ok(OK, crc_before, 0)
    assert link.confirm == 350
    link.append(bytes_at(1000, 100)._replace(confirm=1050), 0)
    assert link.confirm == 1000
    link.copied(1040, 1030)
    assert link.confirm == 1030
    link.copied(1100, 1100)
    assert link.confirm == 1050
    # A new master begins with its own checkpoint, which may be lower.
    link.append(bytes_at(1100, 0, nonce=2)._replace(confirm=20), 0)
    assert link.confirm == 1050


def test_a_link_is_dead_after_the_limit_without_a_frame() -> None:
    link = in_order()
    assert not link.dead(LOCAL.link_dead_ms)
    assert link.dead(LOCAL.link_dead_ms + 1)
    link.append(bytes_at(1000, 0), 900)
    assert not link.dead(900 + LOCAL.link_dead_ms)
    link.heard(1000)
    assert not link.dead(1000 + LOCAL.link_dead_ms)
