from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from aiohttp import web
from click.testing import CliRunner, Result

from tests.unit.client.fake_broker import FakeBroker, error, in_a_thread
from tidemark.cli import awaited_topic, consume, consume_group
from tidemark.cli.main import cli
from tidemark.formats import record
from tidemark.testing.ports import free_ports


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    with in_a_thread(FakeBroker(queues={"lines": [[]], "many": [[], [], []]})) as serving:
        yield serving


def run(broker: FakeBroker, *arguments: str, stdin: bytes = b"") -> Result:
    return CliRunner().invoke(
        cli, [*arguments], input=stdin, env={"TIDEMARK_URL": broker.url}, catch_exceptions=False
    )


def bodies(broker: FakeBroker, topic: str, queue: int = 0) -> list[bytes]:
    return [bytes(record.decode(stored).body) for stored in broker.queues[topic][queue]]


def test_every_line_becomes_a_message_byte_for_byte(broker: FakeBroker) -> None:
    text = b"first\n\nthird\r\n\xff\x00binary\nlast without end"
    done = run(broker, "produce", "lines", stdin=text)
    assert done.exit_code == 0
    assert bodies(broker, "lines") == [
        b"first",
        b"",
        b"third\r",
        b"\xff\x00binary",
        b"last without end",
    ]
    assert done.stdout == ""
    assert "5 lines" in done.stderr


@pytest.mark.parametrize(
    "text", [b"a\nb\n", b"a\nb", b"\n", b"", b"\n\n\n", b"\r\n\x00\xff\n", b"x" * 70_000 + b"\ny"]
)
def test_one_queue_gives_back_the_same_bytes(broker: FakeBroker, text: bytes) -> None:
    assert run(broker, "produce", "lines", stdin=text).exit_code == 0
    back = run(broker, "consume", "lines", "--from-beginning")
    assert back.exit_code == 0
    assert back.stdout_bytes == text


def test_two_inputs_without_a_last_newline_stay_two_lines(broker: FakeBroker) -> None:
    run(broker, "produce", "lines", stdin=b"one")
    run(broker, "produce", "lines", stdin=b"two")
    assert run(broker, "consume", "lines").stdout_bytes == b"one\ntwo"


def test_a_file_is_sent_in_order_with_one_request_in_flight(
    broker: FakeBroker, tmp_path: Path
) -> None:
    source = tmp_path / "lines"
    source.write_bytes(b"".join(b"line %d\n" % number for number in range(5000)))
    done = run(broker, "produce", "lines", "--file", str(source), "--batch", "100")
    assert done.exit_code == 0
    assert bodies(broker, "lines") == [b"line %d" % number for number in range(5000)]
    assert broker.in_flight_most == 1


def test_several_queues_take_turns_and_each_keeps_its_order(broker: FakeBroker) -> None:
    text = b"".join(b"%05d\n" % number for number in range(1000))
    done = run(broker, "produce", "many", "--batch", "10", stdin=text)
    assert done.exit_code == 0
    queues = [bodies(broker, "many", queue) for queue in range(3)]
    assert all(queue == sorted(queue) and len(queue) > 300 for queue in queues)
    back = run(broker, "consume", "many")
    assert sorted(back.stdout_bytes.splitlines(keepends=True)) == text.splitlines(keepends=True)


def test_a_named_queue_gets_all_lines(broker: FakeBroker) -> None:
    assert run(broker, "produce", "many", "--queue", "2", stdin=b"a\nb\n").exit_code == 0
    assert bodies(broker, "many", 2) == [b"a", b"b"]
    assert run(broker, "consume", "many", "--queue", "2").stdout_bytes == b"a\nb\n"
    assert run(broker, "consume", "many", "--queue", "1").stdout_bytes == b""


def test_a_topic_that_the_broker_makes_itself_is_filled_in_order(broker: FakeBroker) -> None:
    broker.auto_create = 1
    text = b"".join(b"%d\n" % number for number in range(50))
    assert run(broker, "produce", "new", "--batch", "7", stdin=text).exit_code == 0
    assert run(broker, "consume", "new").stdout_bytes == text


def test_keys_are_the_matches_of_the_regular_expression(broker: FakeBroker) -> None:
    text = b"order=17 ok\nnothing here\norder=\xff bad\n"
    done = run(
        broker, "produce", "lines", "--key-regex", r"order=(\S+)", "--tags", "new", stdin=text
    )
    assert done.exit_code == 0
    wires = [wire for request in broker.requests for wire in request["messages"]]
    assert [wire.get("keys") for wire in wires] == [["17"], None, None]
    assert {wire["tags"] for wire in wires} == {"new"}
    assert "1 lines got no key" in done.stderr


def test_results_of_produce_can_be_read_by_a_program(broker: FakeBroker) -> None:
    done = run(broker, "produce", "lines", "-o", "json", "--ack", "memory", stdin=b"a\nb\n")
    facts = json.loads(done.stdout)
    assert (facts["lines"], facts["bytes"], facts["level"]) == (2, 4, "memory")


def test_lines_are_followed_under_the_id_that_is_given(broker: FakeBroker) -> None:
    assert run(broker, "produce", "lines", "--trace", "try-1", stdin=b"a\n").exit_code == 0
    assert run(broker, "consume", "lines", "--trace", "try-2").exit_code == 0
    assert run(broker, "consume", "lines").exit_code == 0
    assert list(dict.fromkeys(broker.traced)) == ["try-1", "try-2", None]
    refused = run(broker, "produce", "lines", "--trace", "no spaces", stdin=b"a\n")
    assert refused.exit_code == 2
    assert "1 to 64 characters" in refused.stderr


def test_a_rate_is_kept(broker: FakeBroker) -> None:
    done = run(broker, "produce", "lines", "--rate", "100", "-o", "json", stdin=b"x\n" * 30)
    facts = json.loads(done.stdout)
    assert facts["lines"] == 30
    assert facts["seconds"] >= 0.15


def test_a_refused_line_is_reported_with_the_lines_stored_before(broker: FakeBroker) -> None:
    done = run(broker, "produce", "lines", "--batch", "2", stdin=b"a\nb\nc\nbad\ne\n")
    assert done.exit_code == 1
    assert "[bad-property]" in done.stderr
    assert "lines 3 to 4" in done.stderr
    assert "2 lines (4 bytes) were stored before it" in done.stderr
    assert "Traceback" not in done.stderr


def test_an_unreachable_broker_is_reported_with_cause_and_remedy(unused_tcp_port: int) -> None:
    url = f"http://127.0.0.1:{unused_tcp_port}"
    done = CliRunner().invoke(cli, ["topic", "list", "--url", url])
    assert done.exit_code == 1
    assert "[unreachable]" in done.stderr
    assert "cause:" in done.stderr
    assert "fix:" in done.stderr
    assert "tidemark dev" in done.stderr


def test_an_error_is_json_where_json_was_asked_for(broker: FakeBroker) -> None:
    done = run(broker, "topic", "show", "missing", "-o", "json")
    assert done.exit_code == 1
    assert done.stdout == ""
    assert json.loads(done.stderr)["code"] == "unknown-topic"


@pytest.mark.parametrize(
    "arguments",
    [
        ["nonsense"],
        ["topic", "create"],
        ["topic", "create", "x", "--queues", "0"],
        ["consume", "lines", "--from-beginning", "--offset", "3"],
        ["consume", "lines", "--queue", "minus"],
        ["consume", "lines", "--from-time", "yesterday-ish"],
        ["produce", "lines", "--key-regex", "("],
        ["produce", "lines", "--file", "/no/such/file"],
        ["topic", "list", "--url", "not a url"],
    ],
)
def test_an_invalid_command_ends_with_two(broker: FakeBroker, arguments: list[str]) -> None:
    done = run(broker, *arguments)
    assert done.exit_code == 2
    assert "Traceback" not in done.output


def test_consume_starts_and_ends_at_the_given_offsets(broker: FakeBroker) -> None:
    run(broker, "produce", "lines", stdin=b"".join(b"%d\n" % number for number in range(10)))
    assert run(broker, "consume", "lines", "--offset", "7").stdout_bytes == b"7\n8\n9\n"
    assert run(broker, "consume", "lines", "--max", "2").stdout_bytes == b"0\n1\n"
    assert run(broker, "consume", "lines", "--offset", "99").stdout_bytes == b""
    followed = run(broker, "consume", "lines", "--follow", "--from-beginning", "--max", "3")
    assert followed.stdout_bytes == b"0\n1\n2\n"


@pytest.mark.parametrize("more", [[], ["--group", "readers"], ["--follow"]])
def test_consume_says_that_the_broker_does_not_answer(
    more: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # It tried in silence for a minute before it named the cause.
    monkeypatch.setattr(awaited_topic, "QUIET_S", 0.05)
    for module in (consume, consume_group):
        monkeypatch.setattr(module, "READER_RETRY_FOR_S", 1.0)
    url = f"http://127.0.0.1:{free_ports(1)[0]}"
    done = CliRunner().invoke(cli, ["consume", "lines", "--url", url, *more])
    assert done.exit_code == 1
    waits, *error = done.stderr.splitlines()
    assert waits == "the broker does not answer yet; trying again for up to 60 s"
    assert error[0] == "error: The broker cannot be reached [unreachable]"


def test_consuming_as_json_gives_the_names_of_the_api(broker: FakeBroker) -> None:
    run(broker, "produce", "lines", "--tags", "new", stdin=b"text\n\xff\n")
    done = run(broker, "consume", "lines", "--format", "json")
    first, second = map(json.loads, done.stdout.splitlines())
    assert first["body_text"] == "text"
    assert second["body"] == "/w=="
    assert "body" not in first
    assert first["tags"] == "new"
    assert first["queue_offset"] == 0
    assert second["queue_offset"] == 1


def test_only_messages_with_the_asked_tags_are_written(broker: FakeBroker) -> None:
    run(broker, "produce", "lines", "--tags", "a", stdin=b"1\n")
    run(broker, "produce", "lines", "--tags", "b", stdin=b"2\n")
    # The fake broker does not filter: the command compares the tags itself.
    assert run(broker, "consume", "lines", "--tags", "b || c").stdout_bytes == b"2\n"


def test_tags_that_read_like_tags_are_not_remarked_on(broker: FakeBroker) -> None:
    for expression in ("*", " a-b.c:d/e ", "größe || a!b || x"):
        assert run(broker, "consume", "lines", "--tags", expression).stderr == ""


def test_a_queue_that_the_topic_has_not_is_named(broker: FakeBroker) -> None:
    done = run(broker, "consume", "many", "--queue", "3")
    assert done.exit_code == 1
    assert "[unknown-queue]" in done.stderr
    assert "0 to 2" in done.stderr


def test_a_follower_goes_on_through_an_answer_that_fails(broker: FakeBroker) -> None:
    run(broker, "produce", "lines", stdin=b"1\n2\n")

    async def starting(_request: web.Request) -> web.Response:
        return error(503, "not-serving", retriable=True)

    broker.faults = [starting]
    done = run(broker, "consume", "lines", "--follow", "--offset", "0", "--max", "2")
    assert done.stdout_bytes == b"1\n2\n"


def test_a_follower_that_waited_for_a_topic_gets_its_first_message(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    # It said that it waited for the first message, and then began behind it: at the end.
    def another_client_sends(_text: str) -> None:
        broker.queues["new"] = [[]]
        broker.add("new", 0, {"body": b"first"})

    monkeypatch.setattr("tidemark.cli.awaited_topic.say", another_client_sends)
    done = run(broker, "consume", "new", "--follow", "--max", "1")
    assert done.stdout_bytes == b"first\n"


def test_topics_are_made_listed_shown_and_deleted(broker: FakeBroker) -> None:
    assert run(broker, "topic", "create", "new", "--queues", "2").exit_code == 0
    listed = json.loads(run(broker, "topic", "list", "-o", "json").stdout)
    facts = {"topic": "new", "queues": 2, "retention_ms": None, "queue_type": "simple"}
    assert facts in listed
    assert "new" in run(broker, "topic", "list").stdout
    shown = json.loads(run(broker, "topic", "show", "new", "-o", "json").stdout)
    assert [queue["messages"] for queue in shown] == [0, 0]

    dry = run(broker, "topic", "delete", "new", "--dry-run")
    assert dry.exit_code == 0
    assert "would delete topic new" in dry.stderr
    assert "new" in broker.queues
    wrong = run(broker, "topic", "delete", "new", stdin=b"old\n")
    assert wrong.exit_code == 1
    assert "new" in broker.queues
    assert run(broker, "topic", "delete", "new", stdin=b"new\n").exit_code == 0
    assert "new" not in broker.queues
    run(broker, "topic", "create", "new")
    assert run(broker, "topic", "delete", "new", "--yes").exit_code == 0


def test_every_command_explains_itself() -> None:
    def walk(command: click.Command, path: list[str]) -> None:
        done = CliRunner().invoke(cli, [*path, "--help"])
        assert done.exit_code == 0, path
        assert command.help, path
        for parameter in command.params:
            if isinstance(parameter, click.Option) and not parameter.help:
                assert parameter.show_default, f"{path}: {parameter.name} says nothing"
        if isinstance(command, click.Group):
            for name, child in command.commands.items():
                walk(child, [*path, name])

    walk(cli, [])


def test_a_drill_without_the_package_of_drills_says_what_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("shared.runtime.programs.DRILLS", "drills_that_are_not_installed")
    done = CliRunner().invoke(cli, ["drill", "--list"])
    assert done.exit_code == 1
    assert "no package drills_that_are_not_installed" in done.output


def test_a_drill_is_run_with_the_lease_that_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    replaced: list[list[str]] = []
    monkeypatch.setattr("os.execv", lambda _, command: replaced.append(command))
    arguments = ["drill", "--lease", "etcd", "--seed", "7", "--out", "o", "1", "8"]
    assert CliRunner().invoke(cli, arguments).exit_code == 0
    (command,) = replaced
    assert command[-8:] == ["--lease", "etcd", "--seed", "7", "--out", "o", "1", "8"]
