"""Each kind of damage × each file of a store × moment, on real processes, with one judge.

The judge (``support.damage_judge``) checks that no acked message is lost silently, that damage of
derived files does not make valid data unavailable, and that the remedy in the message heals it. A
run takes a sample of the table, drawn from a seed that is printed; ``TIDEMARK_DAMAGE=all`` takes
all of it (``make damage``), a number that many cases, and ``TIDEMARK_DAMAGE_SEED`` draws the same
again.
"""

from __future__ import annotations

import os
import random
import shutil
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from tests.support.damage_cases import FILES, Case, Kind, Moment, all_cases, damage
from tests.support.damage_judge import REMEDIES_MAX, Acked, Judge, apply_remedy, send
from tests.support.node import Node, wait_until

STORE: Final = {
    "commit_log_file_size": 32 << 10,
    "consume_queue_file_size": 400,
    "index_slots": 50,
    "index_entries": 40,
}
SAMPLE: Final = 10
SEED: Final = int(
    os.environ.get("TIDEMARK_DAMAGE_SEED")
    # The workers of one run have to draw the same cases.
    or zlib.crc32(os.environ.get("PYTEST_XDIST_TESTRUNUID", os.urandom(8).hex()).encode())
)
CHOSEN: Final = os.environ.get("TIDEMARK_DAMAGE", str(SAMPLE))
QUEUES: Final = (("orders", 0), ("orders", 1), ("bills", 0))
SIZE: Final = 700
COMMITTED: Final = [{"topic": "orders", "queue": 0, "offset": 5}]
NOT_DERIVED: Final = frozenset(
    {
        "first log file",
        "middle log file",
        "active log file",
        "log file made ahead",
        "tidemark.json",
    }
)


def cases() -> list[Case]:
    """The cases of this run."""
    table = all_cases(SEED)
    if CHOSEN == "all":
        return table
    return random.Random(SEED).sample(table, min(int(CHOSEN), len(table)))


class Base(NamedTuple):
    """Stores to be copied: after a clean stop, after a kill, and some time before either."""

    clean: Path
    killed: Path
    older: Path
    acked: dict[Moment, list[Acked]]


def fill(node: Node, mark: str, count: int) -> list[Acked]:
    """Send to all queues."""
    return [
        one
        for topic, queue in QUEUES
        for one in send(node, topic, queue, count, f"{mark}-{queue}", SIZE)
    ]


def start(node: Node) -> None:
    node.start()
    node.wait_ready()


def make_topics(node: Node) -> None:
    """Make the topics that do not exist; existing ones do not change."""
    for topic, queues in (("orders", 2), ("bills", 1)):
        path = f"/v1/topics/{topic}"
        status, answer = node.request_json("PUT", path, {"queues": queues})
        assert status in (200, 201), answer


def stop(node: Node) -> None:
    assert node.stop("broker") == {"broker": 0}
    assert node.stop("reput") == {"reput": 0}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Base]:
    root = tmp_path_factory.mktemp("base")
    older, clean, killed = root / "older", root / "clean", root / "killed"
    print(f"seed {SEED}: TIDEMARK_DAMAGE_SEED={SEED} draws the same cases again")
    with Node(root / "node", store=STORE) as node:
        start(node)
        make_topics(node)
        acked = fill(node, "a", 8)
        stop(node)
        shutil.copytree(node.store_dir, older, symlinks=True)
        start(node)
        for path in ("/v1/topics/notes", "/v1/groups/billing"):
            status, answer = node.request_json("PUT", path, {})
            assert status in (200, 201), answer
        acked += fill(node, "b", 18)
        status, answer = node.request_json(
            "POST", "/v1/groups/shipping/offsets", {"offsets": COMMITTED, "ack": "disk"}
        )
        assert status == 200, answer
        late = {"body_text": "later", "delay_ms": 3_600_000}
        status, answer = node.request_json(
            "POST", "/v1/topics/bills/messages", {"messages": [late], "ack": "disk"}
        )
        assert status == 200, answer
        stop(node)
        shutil.copytree(node.store_dir, clean, symlinks=True)
        start(node)
        more = fill(node, "c", 4)
        node.kill()
        shutil.copytree(node.store_dir, killed, symlinks=True)
    yield Base(
        clean, killed, older, {Moment.CLEAN: acked, Moment.UP: acked, Moment.KILLED: acked + more}
    )
    shutil.rmtree(root, ignore_errors=True)


@pytest.mark.parametrize("case", cases(), ids=str)
def test_damage_is_healed_or_named_and_the_remedy_heals(
    case: Case, base: Base, tmp_path: Path
) -> None:
    node_dir = tmp_path / "n"
    store = node_dir / "store"
    shutil.copytree(
        base.killed if case.moment is Moment.KILLED else base.clean, store, symlinks=True
    )
    acked = list(base.acked[case.moment])
    with Node(node_dir, store=STORE) as node:
        judge = Judge(node)
        if case.moment is Moment.UP:
            start(node)
            acked += fill(node, "d", 2)
        done = damage(case, store, tmp_path / "aside", base.older)
        if done is None:
            pytest.skip("the store has no such file, or the damage would change nothing")
        print(f"{case}: {done.what}")
        if case.moment is Moment.UP:
            acked += fill(node, "e", 3)
            seen = judge.settle(acked, starts=1)
            if seen.named:
                judge.check_named(seen.named)
            acked += fill(node, "f", 1)
            node.kill()
        node.start()
        seen = judge.settle(acked)
        if not seen.is_complete and case.file not in NOT_DERIVED:
            # A damaged unit is reported until reput has made it again, which takes a moment.
            wait_until(lambda: judge.look(acked).is_complete, f"sound data behind {seen.named}")
            seen = judge.look(acked)
        print(f"after the start: {seen.named or 'whole'}")
        if seen.is_complete:
            _, answer = node.get_json(f"{node.api_url}/v1/groups/shipping/offsets")
            assert answer["offsets"] == COMMITTED
            check_goes_on(node, judge, acked)
            return
        judge.check_named(seen.named)
        node.kill()
        drawn = random.Random(case.seed)
        without_copy = drawn.random() < 0.5
        if not without_copy:
            done.undo()
        heal(node, judge, seen.named, acked, has_copy=not without_copy, drawn=drawn)


def heal(
    node: Node,
    judge: Judge,
    named: str,
    acked: list[Acked],
    *,
    has_copy: bool,
    drawn: random.Random,
) -> None:
    """Restore, or follow the advice of the messages until no damage is reported any more."""
    survivors = list(acked)
    for remedy in range(REMEDIES_MAX):
        if remedy or not has_copy:
            survives = apply_remedy(node.store_dir, named, begins=drawn.random() < 0.5)
            survivors = [one for one in survivors if survives(one)]
        node.start()
        seen = judge.settle(survivors)
        if seen.is_complete:
            print(f"healed: {len(survivors)} of {len(acked)} messages")
            if not survivors:  # the cut removed the topics too, as the tool reported
                wait_until(lambda: node.ready("broker").get("ready"), "the broker")
                make_topics(node)
            check_goes_on(node, judge, survivors)
            return
        named = seen.named
        judge.check_named(named)
        node.kill()
    raise AssertionError(f"no remedy helped: {named}")


def check_goes_on(node: Node, judge: Judge, acked: list[Acked]) -> None:
    """Sends go on, no queue offset is used twice, and all messages survive one more start."""
    topic, queue = QUEUES[0]
    first: list[Acked] = []

    def goes_on() -> bool:
        # Everything can be read a moment before the broker is open for sends.
        first.extend(send(node, topic, queue, 1, "y", SIZE))
        return bool(first)

    wait_until(goes_on, "sends to go on")
    more = fill(node, "z", 2)
    assert len(more) == 2 * len(QUEUES), "sends do not go on"
    more += first
    places = [one.place for one in (*acked, *more)]
    assert len(set(places)) == len(places), "a queue offset was used twice"
    node.kill()
    node.start()
    assert judge.settle([*acked, *more]).is_complete


def test_the_table_has_every_kind_for_every_file_at_every_moment() -> None:
    table = all_cases(1)
    assert len(table) == len(set(table)) == len(Kind) * len(FILES) * len(Moment)
    print(f"{len(table)} cases: {len(Kind)} kinds, {len(FILES)} files, {len(Moment)} moments")
