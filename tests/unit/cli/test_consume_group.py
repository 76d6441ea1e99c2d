"""``tidemark consume --group`` on the real store."""

from __future__ import annotations

import json
from collections import Counter

import pytest
from click.testing import CliRunner, Result

import tidemark
from tidemark.cli.main import cli
from tidemark.testing import LocalStore

pytest_plugins = ["tidemark.testing.fixtures"]


def run(store: LocalStore, *arguments: str) -> Result:
    return CliRunner().invoke(
        cli, ["consume", *arguments], env={"TIDEMARK_URL": store.url}, catch_exceptions=False
    )


def fill(store: LocalStore, topic: str, count: int, *, queues: int = 3, first: int = 0) -> None:
    with tidemark.connect_sync(store.url) as mq:
        mq.create_topic(topic, queues=queues)
        mq.send_many(
            topic,
            [
                tidemark.NewMessage(b"%d" % number, queue=number % queues, tags="ab"[number % 2])
                for number in range(first, first + count)
            ],
        )


def test_a_group_gets_every_line_once_and_ends_where_the_topic_did(
    tidemark_store: LocalStore,
) -> None:
    fill(tidemark_store, "lines", 100)
    done = run(tidemark_store, "lines", "--group", "readers")
    assert done.exit_code == 0
    assert Counter(map(int, done.stdout.split())) == Counter(range(100))
    assert run(tidemark_store, "lines", "--group", "readers").stdout == ""
    fill(tidemark_store, "lines", 5, first=100)
    assert sorted(map(int, run(tidemark_store, "lines", "--group", "readers").stdout.split())) == [
        *range(100, 105)
    ]
    # Another group has not read anything.
    assert len(run(tidemark_store, "lines", "--group", "others").stdout.split()) == 105


def test_messages_that_were_not_written_are_not_committed(tidemark_store: LocalStore) -> None:
    fill(tidemark_store, "lines", 20, queues=1)
    shares = [
        run(tidemark_store, "lines", "--group", "readers", "--max", str(count)).stdout.split()
        for count in (1, 7, 5, 20)
    ]
    assert [len(share) for share in shares] == [1, 7, 5, 7]
    assert [int(line) for share in shares for line in share] == [*range(20)]


def test_a_follower_of_a_group_waits_for_more(tidemark_store: LocalStore) -> None:
    fill(tidemark_store, "lines", 3)
    with tidemark.connect_sync(tidemark_store.url) as mq:
        mq.send("lines", b"last", delay_ms=1000)
        done = run(tidemark_store, "lines", "--group", "readers", "--follow", "--max", "4")
    assert done.stdout.split()[-1] == "last"


def test_retries_that_are_due_come_before_the_end(tidemark_store: LocalStore) -> None:
    # After `dlq redrive --to group` nothing came: the topic itself had been read to its end.
    fill(tidemark_store, "lines", 1)
    with tidemark.connect_sync(tidemark_store.url) as mq:
        mq.groups.create("readers", retry_max=0)
        with mq.subscribe("lines", group="readers") as messages:
            for message in messages:
                messages.nack(message)
                break
        assert mq.dead_letters.redrive("readers", to="group").redriven == 1
    assert run(tidemark_store, "lines", "--group", "readers").stdout == "0\n"
    assert run(tidemark_store, "lines", "--group", "readers").stdout == ""


def test_a_broadcast_group_is_followed_or_refused(tidemark_store: LocalStore) -> None:
    # It waited forever for commits that no member of such a group makes.
    fill(tidemark_store, "lines", 2)
    with tidemark.connect_sync(tidemark_store.url) as mq:
        mq.groups.create("readers", broadcast=True)
    done = run(tidemark_store, "lines", "--group", "readers")
    assert (done.exit_code, done.stdout) == (1, "")
    assert "broadcast-group" in done.stderr
    assert "--follow" in done.stderr
    followed = run(tidemark_store, "lines", "--group", "readers", "--follow", "--max", "2")
    assert len(followed.stdout.split()) == 2


def test_a_group_takes_only_the_tags_it_names(tidemark_store: LocalStore) -> None:
    fill(tidemark_store, "lines", 30)
    done = run(tidemark_store, "lines", "--group", "readers", "--tags", "b || c")
    assert sorted(map(int, done.stdout.split())) == [*range(1, 30, 2)]
    assert run(tidemark_store, "lines", "--group", "readers", "--tags", "b || c").stdout == ""


def test_a_new_group_begins_at_the_given_start(tidemark_store: LocalStore) -> None:
    fill(tidemark_store, "lines", 4)
    tidemark_store.clock.advance(60)
    since_ms = tidemark_store.clock.wall_ms()
    fill(tidemark_store, "lines", 4, first=4)
    lines = ("lines", "--group")
    assert len(run(tidemark_store, *lines, "all", "--from-beginning").stdout.split()) == 4 + 4
    new = run(tidemark_store, *lines, "new", "--from-time", str(since_ms))
    assert sorted(map(int, new.stdout.split())) == [4, 5, 6, 7]


def test_messages_of_a_group_are_written_as_json(tidemark_store: LocalStore) -> None:
    fill(tidemark_store, "lines", 1)
    done = run(tidemark_store, "lines", "--group", "readers", "--format", "json")
    facts = json.loads(done.stdout)
    assert (facts["topic"], facts["body_text"], facts["tags"]) == ("lines", "0", "a")


def test_a_missing_topic_is_named(tidemark_store: LocalStore) -> None:
    done = run(tidemark_store, "nothing", "--group", "readers")
    assert done.exit_code == 1
    assert "[unknown-topic]" in done.stderr


def test_a_follower_waits_for_a_topic_and_gets_its_first_message(
    tidemark_store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def another_client_sends(_text: str) -> None:
        with tidemark.connect_sync(tidemark_store.url) as mq:
            mq.send("new", b"first")

    monkeypatch.setattr("tidemark.cli.awaited_topic.say", another_client_sends)
    done = run(tidemark_store, "new", "--group", "readers", "--follow", "--max", "1")
    assert done.stdout == "first\n"


@pytest.mark.parametrize(
    ("expression", "named"),
    [
        ("a & b", ": `a & b`. "),
        ("a | b", ": `a | b`. "),
        ("a,b || c", ": `a,b`. "),
        ("!a", ": `!a`. "),
        ("b || a or c || not a", ": `a or c`, `not a`. "),
    ],
)
@pytest.mark.parametrize("more", [[], ["--group", "readers"]])
def test_a_tag_that_reads_like_several_is_remarked_on(
    tidemark_store: LocalStore, expression: str, named: str, more: list[str]
) -> None:
    # Such tags are legal. The answer was empty with status 0, and nothing named the mistake.
    with tidemark.connect_sync(tidemark_store.url) as mq:
        mq.send("lines", b"0")
        mq.send("lines", b"1", tags=expression.split("||")[0].strip())
    done = run(tidemark_store, "lines", "--tags", expression, *more)
    assert (done.exit_code, done.stdout_bytes) == (0, b"1\n")
    assert named in done.stderr
    assert "`a || b`" in done.stderr
