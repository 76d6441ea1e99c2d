"""Commands of operators, over HTTP and over the socket."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from services.ha.core.effects import Reply
from services.ha.core.events import Command
from services.ha.shell.command_bodies import BODY_SIZE_MAX
from services.ha.shell.control import COMMANDS_MAX, Control, ControlSocket
from tests.support.still_clock import until


class ControlClient:
    """A control over its socket whose commands are answered with ``answers``."""

    def __init__(self, ok: bool | None = True, **body: Any) -> None:
        self.commands: list[Command] = []
        self._ok, self._body = ok, body
        self.control = Control(self._post, lambda: {"master": "n0"}, timeout_s=0.05)

    def _post(self, command: Command) -> None:
        self.commands.append(command)
        if self._ok is not None:
            self.control.replied(Reply(command.token, self._ok, self._body))


@asynccontextmanager
async def calling(control: Control) -> AsyncIterator[aiohttp.ClientSession]:
    with tempfile.TemporaryDirectory(prefix="tm-") as directory:
        async with ControlSocket(control, Path(directory)):
            path = str(Path(directory) / "ha-control.sock")
            mode = await asyncio.to_thread(lambda: Path(path).stat().st_mode)
            assert mode & 0o777 == 0o600
            connector = aiohttp.UnixConnector(path)
            async with aiohttp.ClientSession("http://node", connector=connector) as session:
                yield session


async def test_the_status_is_what_the_replica_says() -> None:
    async with calling(ControlClient().control) as session, session.get("/v1/cluster") as answer:
        assert answer.status == 200
        assert await answer.json() == {"master": "n0"}


async def test_a_command_and_its_arguments_reach_the_replica_and_its_answer_comes_back() -> None:
    operator = ControlClient(epoch=7)
    arguments = {"to": "n1", "loss": 5, "unclean": True, "stopped": ["n0", "n2"]}
    async with (
        calling(operator.control) as session,
        session.post("/v1/cluster/failover", json=arguments) as answer,
    ):
        assert (answer.status, await answer.json()) == (200, {"epoch": 7})
    assert operator.commands[0][1:] == (
        "failover",
        {"to": "n1", "loss": "5", "unclean": "true", "stopped": "n0,n2"},
    )


async def test_a_refusal_is_an_error_with_what_the_replica_says() -> None:
    operator = ControlClient(ok=False, code="not-in-sync", detail="n1 is behind.", loss_bytes=12)
    async with (
        calling(operator.control) as session,
        session.post("/v1/cluster/switchover") as answer,
    ):
        body = await answer.json()
    assert answer.status == 409
    assert body["code"] == "not-in-sync"
    assert (body["detail"], body["loss_bytes"]) == ("n1 is behind.", 12)
    assert body["retriable"] is False


@pytest.mark.parametrize(
    ("path", "body", "status", "code"),
    [
        ("/v1/cluster/explode", b"", 404, "unknown-call"),
        ("/v1/cluster/pause", b"{", 400, "bad-request"),
        ("/v1/cluster/pause", b"[]", 400, "bad-request"),
        ("/v1/cluster/pause", b'{"a": {}}', 400, "bad-request"),
        ("/v1/cluster/switchover", b'{"reason": "stopping"}', 400, "bad-request"),
        ("/v1/cluster/pause", b"[" * 50_000, 400, "bad-request"),
        ("/v1/cluster/pause", b" " * (BODY_SIZE_MAX + 1), 400, "bad-request"),
    ],
)
async def test_what_is_no_command_is_refused_and_nothing_happens(
    path: str, body: bytes, status: int, code: str
) -> None:
    operator = ControlClient()
    async with calling(operator.control) as session, session.post(path, data=body) as answer:
        assert answer.status == status
        assert (await answer.json())["code"] == code
    assert not operator.commands


async def test_a_command_that_goes_on_is_not_waited_for_for_ever() -> None:
    operator = ControlClient(ok=None)
    async with (
        calling(operator.control) as session,
        session.post("/v1/cluster/resync") as answer,
    ):
        assert answer.status == 504
        assert (await answer.json())["code"] == "command-timeout"
    operator.control.replied(Reply(operator.commands[0].token, True, {}))  # the call has ended


async def test_waiting_calls_are_answered_when_the_process_ends() -> None:
    operator = ControlClient(ok=None)
    operator.control = Control(operator._post, dict, timeout_s=60.0)
    async with calling(operator.control) as session:
        waiting = asyncio.ensure_future(session.post("/v1/cluster/switchover"))
        await until(lambda: operator.commands)
        operator.control.close()
        async with asyncio.timeout(10), await waiting as answer:
            assert answer.status == 504
            assert "has ended" in (await answer.json())["detail"]


@pytest.mark.parametrize("sent", [b"", b'{"to"'])
async def test_a_body_that_does_not_end_costs_a_connection_for_a_bounded_time(sent: bytes) -> None:
    # A client that announced a body and sent nothing kept its connection forever.
    operator = ControlClient()
    with tempfile.TemporaryDirectory(prefix="tm-") as directory:
        async with ControlSocket(operator.control, Path(directory)):
            reader, writer = await asyncio.open_unix_connection(f"{directory}/ha-control.sock")
            head = b"POST /v1/cluster/pause HTTP/1.1\r\nHost: n\r\nContent-Length: 9\r\n\r\n"
            writer.write(head + sent)
            answer = await asyncio.wait_for(reader.readuntil(b"}\n"), 10)
            assert b" 408 " in answer.partition(b"\r\n")[0]
            assert b"slow-request" in answer
            assert f"{len(sent)} bytes of the body arrived within 0.05 s".encode() in answer
            writer.close()
    assert operator.commands == []


@pytest.mark.parametrize(("method", "status"), [("GET", b" 404 "), ("DELETE", b" 405 ")])
async def test_the_answer_to_an_unknown_path_or_method_ends_with_a_newline(
    method: str, status: bytes
) -> None:
    where = "/v1/cluster" if status == b" 405 " else "/v1/nothing"
    operator = ControlClient()
    with tempfile.TemporaryDirectory(prefix="tm-") as directory:
        async with ControlSocket(operator.control, Path(directory)):
            reader, writer = await asyncio.open_unix_connection(f"{directory}/ha-control.sock")
            writer.write(
                f"{method} {where} HTTP/1.1\r\nHost: n\r\nConnection: close\r\n\r\n".encode()
            )
            answer = await asyncio.wait_for(reader.read(), 10)
            writer.close()
    assert status in answer.partition(b"\r\n")[0]
    assert answer.endswith(b"\n")


async def test_commands_that_wait_are_bounded() -> None:
    operator = ControlClient(ok=None)

    async def order(session: aiohttp.ClientSession) -> int:
        async with session.post("/v1/cluster/pause") as answer:
            return answer.status

    async with calling(operator.control) as session:
        statuses = await asyncio.gather(*(order(session) for _ in range(COMMANDS_MAX + 4)))
    assert sorted(statuses) == [503] * 4 + [504] * COMMANDS_MAX


async def test_a_port_that_takes_no_commands_still_answers_the_status() -> None:
    operator = ControlClient()
    app = web.Application()
    app.add_routes(operator.control.port_routes(None))
    async with TestClient(TestServer(app)) as client:
        async with client.get("/v1/cluster") as answer:
            assert (answer.status, await answer.json()) == (200, {"master": "n0"})
        async with client.post("/v1/cluster/switchover", json={}) as answer:
            body = await answer.json()
    assert (answer.status, body["code"]) == (403, "order-by-socket")
    assert "TIDEMARK_RUN_DIR" in body["advice"]
    assert operator.commands == []


PAGE = {"Origin": "http://evil.example"}
JSON = {"Content-Type": "application/json; charset=utf-8"}


@pytest.mark.parametrize(
    ("headers", "cause"),
    [
        # A page in an operator's browser posted a command, and the node was emptied.
        ({**JSON, **PAGE}, "the web page http://evil.example"),
        ({**JSON, "Origin": "null"}, "the web page null"),
        # What a form or a script sends without the browser asking first.
        ({"Content-Type": "text/plain"}, "as text/plain"),
        ({"Content-Type": "application/x-www-form-urlencoded"}, "as application/x-www"),
        ({"Content-Type": "application/jsonx"}, "as application/jsonx"),
        # A name of the attacker that resolves to this node.
        ({**JSON, "Host": "evil.example:8083"}, "addressed to evil.example"),
        ({**JSON, "Host": "n1.group.evil.example"}, "addressed to n1.group.evil.example"),
        ({**JSON, "Host": "127.0.0.1.evil.example"}, "addressed to 127.0.0.1.evil.example"),
        ({**JSON, "Host": "n1:x"}, "addressed to no host"),
    ],
)
async def test_an_order_that_may_come_from_a_web_page_is_refused(
    headers: dict[str, str], cause: str
) -> None:
    operator = ControlClient()
    app = web.Application()
    app.add_routes(operator.control.port_routes({"n1.group"}))
    async with (
        TestClient(TestServer(app)) as client,
        client.post("/v1/cluster/resync", data=b"{}", headers=headers) as answer,
    ):
        body = await answer.json()
    assert (answer.status, body["code"]) == (403, "foreign-order")
    assert cause in body["detail"]
    assert operator.commands == []


@pytest.mark.parametrize("host", ["n1.group:8083", "10.0.0.7", "[::1]:8083", "localhost", None])
async def test_an_order_to_a_node_by_its_name_or_address_is_taken(host: str | None) -> None:
    operator = ControlClient()
    app = web.Application()
    app.add_routes(operator.control.port_routes({"n1.group"}))
    headers = {} if host is None else {"Host": host}
    async with (
        TestClient(TestServer(app)) as client,
        client.post("/v1/cluster/pause", json={}, headers=headers) as answer,
    ):
        assert answer.status == 200
    assert [command.name for command in operator.commands] == ["pause"]
