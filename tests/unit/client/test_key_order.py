from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable

from hypothesis import given
from hypothesis import strategies as st

from tidemark.client.key_order import KeyOrder

KEYS = st.sampled_from(["a", "b", "c", None])


@given(st.lists(KEYS, max_size=60), st.integers(1, 8), st.data())
def test_messages_of_one_key_are_handled_one_after_another_in_order(
    keys: list[str | None], concurrency: int, data: st.DataObject
) -> None:
    """Arrivals, starts and ends in any interleaving; nothing that could start is kept back."""
    order: KeyOrder[int] = KeyOrder()
    arriving = list(enumerate(keys))
    under_way: list[tuple[Hashable | None, int]] = []
    started: dict[Hashable | None, list[int]] = defaultdict(list)
    while arriving or under_way or len(order):
        steps = ["put"] * bool(arriving) + ["end"] * bool(under_way)
        if len(under_way) < concurrency and len(order):
            steps.append("start")
        step = data.draw(st.sampled_from(steps))
        if step == "put":
            number, key = arriving.pop(0)
            order.put(key, number)
        elif step == "end":
            key_of_done, _ = under_way.pop(data.draw(st.integers(0, len(under_way) - 1)))
            order.end(key_of_done)
        else:
            turn = order.start()
            busy = {key for key, _ in under_way}
            if turn is None:
                waiting = [
                    (keys[number], number)
                    for number in range(len(keys) - len(arriving))
                    if number not in {done for each in started.values() for done in each}
                ]
                assert all(key is not None and key in busy for key, _ in waiting)
                continue
            begun_key, number = turn
            assert begun_key is None or begun_key not in busy
            assert keys[number] == begun_key
            under_way.append(turn)
            started[begun_key].append(number)
    for key in {*keys}:
        expected = [number for number, each in enumerate(keys) if each == key]
        assert started[key] == expected


@given(st.lists(KEYS, max_size=40), st.integers(0, 10), st.data())
def test_dropped_messages_never_start_and_kept_ones_keep_their_order(
    keys: list[str | None], start_count: int, data: st.DataObject
) -> None:
    order: KeyOrder[int] = KeyOrder()
    for number, key in enumerate(keys):
        order.put(key, number)
    under_way = [turn for _ in range(start_count) if (turn := order.start()) is not None]
    unwanted = data.draw(st.sets(st.integers(0, max(0, len(keys) - 1))))
    dropped = order.drop(lambda number: number in unwanted)
    begun = {number for _, number in under_way}
    assert sorted(dropped) == sorted((unwanted - begun) & set(range(len(keys))))
    for begun_key, _ in under_way:
        order.end(begun_key)
    rest: list[tuple[Hashable | None, int]] = []
    while (turn := order.start()) is not None:
        rest.append(turn)
        order.end(turn[0])
    assert sorted(number for _, number in rest) == sorted(set(range(len(keys))) - unwanted - begun)
    for key in {*keys} - {None}:
        of_key = [number for each, number in rest if each == key]
        assert of_key == sorted(of_key)
    assert len(order) == 0
