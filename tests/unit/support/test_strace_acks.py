"""The trace checker believes a sync only when it has returned, and only for what it covered."""

from __future__ import annotations

from tests.support.strace_acks import judge

LOG = "/s/commitlog/00000000000000000000"
NEXT = "/s/commitlog/00000000000000001000"
WRITE = f'7 pwrite64(5<{LOG}>, "abc\\0"..., 100, 0) = 100'
SYNC = f"8 fdatasync(5<{LOG}>) = 0"
ENTER = f"8 fdatasync(5<{LOG}> <unfinished ...>"
LEAVE = "8 <... fdatasync resumed>) = 0"
ACK = (
    '7 sendto(9<socket:[1]>, "HTTP/1.1 200 OK\\r\\n\\r\\n{\\"ack\\": {\\"level\\": \\"disk\\"},'
    ' \\"results\\": [{\\"physical_offset\\": 0}]}", 90, 0, NULL, 0) = 90'
)
SIZES = {0: 100, 1000: 100}


def test_an_ack_behind_its_sync_is_right() -> None:
    verdict = judge([WRITE, SYNC, ACK], SIZES)
    assert verdict == (frozenset({0}), (), 1)
    assert judge([WRITE, ENTER, LEAVE, ACK], SIZES).violations == ()


def test_an_ack_without_a_sync_is_found() -> None:
    assert len(judge([WRITE, ACK], SIZES).violations) == 1


def test_a_sync_that_has_not_returned_does_not_count() -> None:
    assert len(judge([WRITE, ENTER, ACK, LEAVE], SIZES).violations) == 1


def test_a_sync_covers_only_what_was_written_before_it_began() -> None:
    assert len(judge([ENTER, WRITE, LEAVE, ACK], SIZES).violations) == 1


def test_a_write_that_had_not_returned_when_the_sync_began_does_not_count() -> None:
    begun = f'7 pwrite64(5<{LOG}>, "abc"..., 100, 0 <unfinished ...>'
    done = "7 <... pwrite64 resumed>) = 100"
    assert len(judge([begun, ENTER, done, LEAVE, ACK], SIZES).violations) == 1
    assert judge([begun, done, ENTER, LEAVE, ACK], SIZES).violations == ()


def test_a_failed_or_foreign_sync_does_not_count() -> None:
    failed = f"8 fdatasync(5<{LOG}>) = -1 EIO (Input/output error)"
    assert len(judge([WRITE, failed, ACK], SIZES).violations) == 1
    assert len(judge([WRITE, SYNC.replace("commitlog", "other"), ACK], SIZES).violations) == 1


def test_a_short_write_does_not_cover_the_record() -> None:
    assert len(judge([WRITE.replace("= 100", "= 40"), SYNC, ACK], SIZES).violations) == 1
    rest = f'7 pwrite64(5<{LOG}>, "c"..., 60, 40) = 60'
    assert judge([WRITE.replace("= 100", "= 40"), rest, SYNC, ACK], SIZES).violations == ()


def test_a_new_file_needs_the_sync_of_its_directory() -> None:
    made = f'7 openat(AT_FDCWD, "{NEXT}", O_RDWR|O_CREAT|O_EXCL|O_CLOEXEC, 0644) = 6<{NEXT}>'
    write, sync = WRITE.replace(LOG, NEXT), SYNC.replace(LOG, NEXT)
    ack = ACK.replace('offset\\": 0', 'offset\\": 1000')
    assert len(judge([made, write, sync, ack], SIZES).violations) == 1
    named = "8 fsync(4</s/commitlog>) = 0"
    assert judge([made, named, write, sync, ack], SIZES).violations == ()


def test_an_answer_at_level_memory_promises_nothing() -> None:
    assert judge([ACK.replace("disk", "memory")], SIZES) == (frozenset(), (), 0)
