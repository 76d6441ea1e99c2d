from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from shared.runtime.doorbell import NOTE_SIZE_MAX, SOCKET_PATH_SIZE_MAX, Doorbell
from tidemark.errors import PathTooLong


@pytest.fixture
def bells(tmp_path: Path) -> Iterator[tuple[Doorbell, Doorbell]]:
    one, two = Doorbell(tmp_path, "broker"), Doorbell(tmp_path, "reput")
    yield one, two
    one.close()
    two.close()


async def test_a_ring_ends_the_wait(bells: tuple[Doorbell, Doorbell]) -> None:
    broker, reput = bells
    waiting = asyncio.create_task(reput.wait(10))
    await asyncio.sleep(0)
    assert broker.ring("reput")
    assert await waiting, "it ended by its time-out, not by the ring"


async def test_a_ring_before_the_wait_is_not_lost(bells: tuple[Doorbell, Doorbell]) -> None:
    broker, reput = bells
    assert not await reput.wait(0.001)  # registers the reader
    for _ in range(3):
        broker.ring("reput")
    assert await reput.wait(5)
    while await reput.wait(0.001):
        pass  # each of the other two may wake it once more


async def test_a_ring_during_a_rest_does_not_wake_it_and_counts_for_the_next_wait(
    bells: tuple[Doorbell, Doorbell],
) -> None:
    broker, reput = bells
    assert not await reput.wait(0.001)
    resting = asyncio.create_task(reput.rest(0.05))
    await asyncio.sleep(0)
    assert broker.ring("reput")
    began = asyncio.get_running_loop().time()
    await resting
    assert asyncio.get_running_loop().time() - began > 0.04
    assert await reput.wait(5)
    waiting = asyncio.create_task(reput.wait(5))
    await asyncio.sleep(0)
    broker.ring("reput")
    assert await waiting


async def test_a_missing_listener_and_a_full_socket_are_no_errors(
    bells: tuple[Doorbell, Doorbell],
) -> None:
    broker, _ = bells
    assert not broker.ring("ha")
    results = {broker.ring("reput") for _ in range(10_000)}
    assert results == {True, False}, "the queue of the socket fills and the ring is dropped"


async def test_a_ring_from_another_thread_arrives(bells: tuple[Doorbell, Doorbell]) -> None:
    broker, reput = bells
    thread = threading.Thread(target=broker.ring, args=("reput",))
    waiting = asyncio.create_task(reput.wait(5))
    await asyncio.sleep(0)
    thread.start()
    assert await waiting
    thread.join()


async def test_a_wake_from_the_inside_counts_like_a_ring(
    bells: tuple[Doorbell, Doorbell],
) -> None:
    _, reput = bells
    reput.wake()
    assert await reput.wait(5)


async def test_a_stale_socket_file_is_replaced(tmp_path: Path) -> None:
    killed = Doorbell(tmp_path, "broker")
    again = Doorbell(tmp_path, "broker")
    other = Doorbell(tmp_path, "reput")
    assert other.ring("broker")
    assert await again.wait(5)
    for bell in (other, again, killed):
        bell.close()
    assert list(tmp_path.iterdir()) == []  # noqa: ASYNC240 - a test may block


def test_a_path_of_exactly_the_kernels_length_works_and_one_more_is_refused_by_name(
    tmp_path: Path,
) -> None:
    room = SOCKET_PATH_SIZE_MAX - len(f"{tmp_path}/") - len("/broker.sock") - 1
    assert room > 0
    fits = tmp_path / ("d" * room)
    Doorbell(fits, "broker").close()
    with pytest.raises(PathTooLong, match="takes 109 bytes, the kernel takes 108"):
        Doorbell(tmp_path / ("d" * (room + 1)), "broker")


async def test_a_note_comes_with_a_ring_and_wakes_like_one(
    bells: tuple[Doorbell, Doorbell], tmp_path: Path
) -> None:
    broker, reput = bells
    reput.close()
    notes: list[bytes] = []
    reput = Doorbell(tmp_path, "reput", notes.append)
    assert not await reput.wait(0.001)
    broker.ring("reput", b"a note")
    broker.ring("reput")
    broker.ring("reput", b"x" * (NOTE_SIZE_MAX + 1))  # rings all the same
    assert await reput.wait(5)
    assert notes == [b"a note"]
    reput.close()


async def test_a_note_without_a_reader_is_a_ring(bells: tuple[Doorbell, Doorbell]) -> None:
    broker, reput = bells
    assert not await reput.wait(0.001)
    assert broker.ring("reput", b"a note")
    assert await reput.wait(5)
