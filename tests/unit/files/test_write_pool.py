"""The ring in which appended bytes wait, and when they leave it."""

from __future__ import annotations

import threading
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.files.write_pool import PAGE_SIZE, CommitPace, WritePool, commit_due

PACE = CommitPace(interval_s=0.2, least_bytes=4 * PAGE_SIZE, thorough_s=0.5)


class TestCommitDue:
    @pytest.mark.parametrize(
        ("pooled", "waiting", "since_commit_s", "due"),
        [
            (0, False, 9.0, None),
            (0, True, 9.0, None),  # the one who waits is answered by what was committed before
            (1, True, 0.0, 0.0),
            (1, False, 0.0, 0.5),
            (1, False, 0.4, pytest.approx(0.1)),
            (1, False, 0.6, 0.0),
            (4 * PAGE_SIZE - 1, False, 0.2, pytest.approx(0.3)),
            (4 * PAGE_SIZE, False, 0.0, 0.2),
            (4 * PAGE_SIZE, False, 0.2, 0.0),
            (4 * PAGE_SIZE, True, 0.0, 0.0),
        ],
    )
    def test_table(
        self, pooled: int, waiting: bool, since_commit_s: float, due: float | None
    ) -> None:
        assert commit_due(PACE, pooled=pooled, waiting=waiting, since_commit_s=since_commit_s) == (
            due
        )

    def test_a_thorough_commit_is_never_later_than_the_interval_says(self) -> None:
        pace = CommitPace(5.0, 4 * PAGE_SIZE, 0.2)
        assert commit_due(pace, pooled=1 << 20, waiting=False, since_commit_s=0.0) == 0.2


def fill(pool: WritePool, offset: int, data: bytes) -> bool:
    """Put data for offset; False if there is no room."""
    place = pool.place(len(data))
    if place is None:
        return False
    place[:] = data
    pool.put(offset, len(data))
    return True


def kept(pool: WritePool, end: int) -> list[tuple[int, bytes]]:
    return [(offset, bytes(data)) for offset, data in pool.stretches(end)]


class TestRing:
    def test_its_size_is_whole_pages(self) -> None:
        assert WritePool(1).size == PAGE_SIZE
        assert WritePool(PAGE_SIZE).size == PAGE_SIZE
        assert WritePool(PAGE_SIZE + 1).size == 2 * PAGE_SIZE

    def test_adjacent_puts_leave_as_one_stretch(self) -> None:
        pool = WritePool(PAGE_SIZE)
        assert fill(pool, 100, b"one")
        assert fill(pool, 103, b"two")
        assert kept(pool, 106) == [(100, b"onetwo")]
        assert kept(pool, 103) == [(100, b"one")]
        assert kept(pool, 100) == []

    def test_bytes_of_another_file_are_a_stretch_of_their_own(self) -> None:
        pool = WritePool(PAGE_SIZE)
        assert fill(pool, 100, b"old")
        assert fill(pool, 8192, b"new")
        assert kept(pool, 8195) == [(100, b"old"), (8192, b"new")]
        pool.free(103)
        assert kept(pool, 8195) == [(8192, b"new")]

    def test_a_full_pool_has_no_room_until_bytes_leave_in_order(self) -> None:
        pool = WritePool(PAGE_SIZE)
        assert fill(pool, 0, b"a" * 3000)
        assert fill(pool, 3000, b"b" * (PAGE_SIZE - 3000))
        assert pool.place(1) is None
        pool.free(3000)
        assert fill(pool, PAGE_SIZE, b"c" * 3000)
        assert pool.place(1) is None
        assert [len(data) for _, data in pool.stretches(PAGE_SIZE + 3000)] == [1096, 3000]
        pool.free(PAGE_SIZE + 3000)
        assert fill(pool, PAGE_SIZE + 3000, b"d" * PAGE_SIZE)

    def test_more_than_the_pool_never_fits(self) -> None:
        assert WritePool(PAGE_SIZE).place(PAGE_SIZE + 1) is None

    @given(st.lists(st.tuples(st.integers(1, 3000), st.integers(0, 4)), max_size=60), st.booleans())
    def test_every_byte_comes_out_once_in_order_and_unchanged(
        self, steps: list[tuple[int, int]], new_files: bool
    ) -> None:
        pool = WritePool(2 * PAGE_SIZE)
        offset = 0
        put: list[tuple[int, bytes]] = []
        out: dict[int, int] = {}

        def take(until: int) -> None:
            for start, data in pool.stretches(until):
                for index, byte in enumerate(data):
                    assert start + index not in out
                    out[start + index] = byte
            pool.free(until)

        for number, (size, action) in enumerate(steps):
            data = bytes([number % 256]) * size
            if not fill(pool, offset, data):
                take(offset)
                assert fill(pool, offset, data)
            put.append((offset, data))
            offset += size
            if new_files and action == 3:
                offset += 8 + size
            if action == 0 and len(put) > 2:
                take(put[-2][0] + len(put[-2][1]))
        take(offset)
        expected = {start + index: byte for start, data in put for index, byte in enumerate(data)}
        assert out == expected
        assert list(out) == sorted(out)

    def test_one_thread_may_put_while_another_takes(self) -> None:
        pool = WritePool(4 * PAGE_SIZE)
        ends = [0]
        done = threading.Event()
        out = bytearray()

        def take() -> None:
            taken = 0
            while not (done.is_set() and taken == ends[-1]):
                end = ends[-1]
                for start, data in pool.stretches(end):
                    assert start == len(out)
                    out.extend(data)
                pool.free(end)
                taken = end

        taker = threading.Thread(target=take)
        taker.start()
        random, sent = Random(7), bytearray()
        for _ in range(600):
            data = random.randbytes(random.randint(1, 900))
            while not fill(pool, len(sent), data):
                pass
            sent += data
            ends.append(len(sent))
        done.set()
        taker.join()
        assert out == sent
