"""Nodes and their answers: reachable, the right node, one master, the same clock."""

from __future__ import annotations

import email.utils
import socket
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from tidemark import __version__
from tidemark.cli.doctor.findings import Finding, Level
from tidemark.cli.doctor.nodes import check_nodes, own_names, skew
from tidemark.cli.doctor.ports import replication_checks


class Node:
    """The answers of one node."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.says_of_itself: str | None = "in-sync"
        self.reason: str | None = None
        self.version = __version__
        self.ahead_s = 0.0
        self.answers_as: str | None = None
        self.alarms: list[dict[str, str]] = []
        self.url = ""


class Group:
    """Two nodes on ports of their own."""

    def __init__(self) -> None:
        self.nodes = [Node("a"), Node("b")]
        self.in_sync = ["a", "b"]
        self.advertised: dict[str, str] = {}

    @asynccontextmanager
    async def running(self) -> AsyncIterator[list[Node]]:
        async with AsyncExitStack() as stack:
            for node in self.nodes:
                server = TestServer(self._application(node))
                await server.start_server()
                stack.push_async_callback(server.close)
                node.url = str(server.make_url("/")).rstrip("/")
            yield self.nodes

    def _application(self, node: Node) -> web.Application:
        async def cluster(_: web.Request) -> web.Response:
            own = node.answers_as or node.name
            rows = [
                {
                    "node": each.name,
                    "state": each.says_of_itself,
                    "in_sync": each.name in self.in_sync,
                    "reason": each.reason,
                    "lag_bytes": 77,
                    "api": self.advertised.get(each.name, each.url),
                    "admin": each.url,
                    "seen_ms_ago": 0 if each.name == own else 40,
                }
                for each in self.nodes
            ]
            date = email.utils.formatdate(time.time() + node.ahead_s, usegmt=True)
            return web.json_response(
                {"cluster": "c", "group": "g0", "nodes": rows, "alarms": node.alarms},
                headers={"Date": date},
            )

        async def document(_: web.Request) -> web.Response:
            return web.json_response({"info": {"version": node.version}})

        async def live(_: web.Request) -> web.Response:
            return web.json_response({"live": True})

        application = web.Application()
        application.add_routes(
            [
                web.get("/v1/cluster", cluster),
                web.get("/v1/openapi.json", document),
                web.get("/live", live),
            ]
        )
        return application


@pytest.fixture
def group() -> Group:
    found = Group()
    found.nodes[0].says_of_itself = "master"
    return found


def of(findings: list[Finding], check: str) -> list[Finding]:
    return [finding for finding in findings if finding.check == check]


async def test_a_healthy_group_has_only_ok_findings(group: Group) -> None:
    async with group.running() as nodes:
        found = await check_nodes([nodes[1].url])
    assert {finding.level for finding in found} == {Level.OK}, found
    assert [finding.subject for finding in of(found, "nodes.api")] == ["a", "b"]
    assert of(found, "nodes.master")[0].cause == "a is the master"


async def test_an_advertised_address_that_cannot_be_reached_is_named_with_its_node(
    group: Group, unused_tcp_port: int
) -> None:
    group.advertised["b"] = f"http://127.0.0.1:{unused_tcp_port}"
    async with group.running() as nodes:
        found = await check_nodes([nodes[0].url])
    well, bad = of(found, "nodes.api")
    assert well.level is Level.OK
    assert (bad.level, bad.subject, bad.code) == (Level.ERROR, "b", "doctor-unreachable")
    assert str(unused_tcp_port) in bad.cause
    assert socket.gethostname() in bad.cause


async def test_an_unknown_host_name_is_reported_as_such(group: Group) -> None:
    group.advertised["b"] = "http://no-such-node.invalid:8080"
    async with group.running() as nodes:
        found = await check_nodes([nodes[0].url])
    assert (
        "the name no-such-node.invalid cannot be resolved here" in of(found, "nodes.api")[1].cause
    )


async def test_an_address_of_another_node_is_reported(group: Group) -> None:
    async with group.running() as nodes:
        group.advertised["b"] = nodes[0].url
        found = await check_nodes([nodes[0].url])
    bad = of(found, "nodes.api")[1]
    assert (bad.level, bad.code, bad.value, bad.limit) == (
        Level.ERROR,
        "doctor-wrong-node",
        "a",
        "b",
    )


@pytest.mark.parametrize(("masters", "count"), [((), 0), (("a", "b"), 2)])
async def test_no_master_and_two_masters_are_errors(
    group: Group, masters: tuple[str, ...], count: int
) -> None:
    for node in group.nodes:
        node.says_of_itself = "master" if node.name in masters else "slave"
    async with group.running() as nodes:
        found = await check_nodes([nodes[0].url])
    (finding,) = of(found, "nodes.master")
    assert (finding.level, finding.value, finding.limit) == (Level.ERROR, count, 1)
    assert finding.code == "doctor-masters"


async def test_who_is_master_is_unknown_while_a_node_cannot_be_asked(
    group: Group, unused_tcp_port: int
) -> None:
    group.advertised["a"] = f"http://127.0.0.1:{unused_tcp_port}"
    async with group.running() as nodes:
        found = await check_nodes([nodes[1].url])
    (finding,) = of(found, "nodes.master")
    assert finding.level is Level.UNKNOWN


@pytest.mark.parametrize(
    ("state", "reason", "level"),
    [
        ("catchup", None, Level.WARNING),
        ("resync", "the log's beginning is gone", Level.WARNING),
        ("follower", None, Level.WARNING),  # it has just started
        # The doctor said "0 errors" of a group whose only other node was refused.
        ("follower", "n0 refuses it: its secret is another one", Level.ERROR),
        ("halted", "cut-below-confirm", Level.ERROR),
        (None, "not reachable", Level.ERROR),
    ],
)
async def test_a_node_that_does_not_come_back_by_itself_is_an_error(
    group: Group, state: str | None, reason: str | None, level: Level
) -> None:
    group.in_sync = ["a"]
    group.nodes[1].says_of_itself, group.nodes[1].reason = state, reason
    async with group.running() as nodes:
        found = await check_nodes([nodes[0].url])
    (behind,) = of(found, "nodes.in-sync")
    assert (behind.level, behind.subject) == (level, "b")


async def test_a_node_that_was_removed_from_its_group_is_an_error(group: Group) -> None:
    async with group.running() as nodes:
        assert not of(await check_nodes([nodes[0].url]), "nodes.removed")
        nodes[0].alarms = [{"code": "removed-node", "detail": "a is not a node of the group"}]
        (found,) = of(await check_nodes([nodes[0].url]), "nodes.removed")
    assert (found.level, found.code) == (Level.ERROR, "doctor-removed-node")
    assert "add-node" in found.remedy


async def test_a_node_that_is_not_in_sync_is_reported_with_its_alarms(group: Group) -> None:
    group.in_sync = ["a"]
    group.nodes[1].says_of_itself = "catchup"
    group.nodes[1].alarms = [{"code": "lease-slow", "detail": "the lease answers late"}]
    async with group.running() as nodes:
        found = await check_nodes([nodes[0].url])
    (behind,) = of(found, "nodes.in-sync")
    assert (behind.level, behind.subject, behind.value) == (Level.WARNING, "b", 77)
    (alarm,) = of(found, "nodes.alarms")
    assert (alarm.subject, alarm.code) == ("b", "lease-slow")


@pytest.mark.parametrize(
    ("ahead_s", "level"), [(0, Level.OK), (-8, Level.WARNING), (3600, Level.ERROR)]
)
async def test_a_wrong_clock_is_reported(group: Group, ahead_s: float, level: Level) -> None:
    group.nodes[1].ahead_s = ahead_s
    async with group.running() as nodes:
        found = await check_nodes([nodes[0].url])
    ours, theirs = of(found, "nodes.clock")
    assert ours.level is Level.OK
    assert theirs.level is level


async def test_different_versions_are_reported(group: Group) -> None:
    group.nodes[1].version = "9.9.9"
    async with group.running() as nodes:
        found = await check_nodes([nodes[0].url])
    (finding,) = of(found, "nodes.version")
    assert (finding.level, finding.code) == (Level.WARNING, "doctor-versions-differ")
    assert "b 9.9.9" in finding.subject


async def test_a_foreign_server_is_reported(unused_tcp_port: int) -> None:
    async def hello(_: web.Request) -> web.Response:
        return web.json_response({"hello": "world"})

    application = web.Application()
    application.add_routes([web.get("/v1/cluster", hello)])
    server = TestServer(application)
    await server.start_server()
    try:
        (finding,) = await check_nodes([str(server.make_url("/")).rstrip("/")])
    finally:
        await server.close()
    assert finding.level is Level.ERROR
    assert "not that of a Tidemark node" in finding.cause


@pytest.mark.parametrize(
    ("date", "before", "after", "expected"),
    [
        ("Thu, 01 Jan 1970 00:00:10 GMT", 10.2, 10.3, 0.0),
        ("Thu, 01 Jan 1970 00:00:10 GMT", 9.5, 9.9, pytest.approx(0.1)),
        ("Thu, 01 Jan 1970 00:00:10 GMT", 20.0, 20.1, pytest.approx(-9.0)),
        ("Thu, 01 Jan 1970 00:00:10 GMT", 5.0, 5.5, pytest.approx(4.5)),
        ("not a date", 5.0, 5.5, None),
        (None, 5.0, 5.5, None),
    ],
)
def test_a_date_of_whole_seconds_bounds_the_clock_difference(
    date: str | None, before: float, after: float, expected: Any
) -> None:
    assert skew(date, before, after) == expected


def test_an_answer_is_from_the_node_that_it_has_just_seen() -> None:
    rows = [{"node": "a", "seen_ms_ago": 12}, {"node": "b", "seen_ms_ago": 0}]
    assert own_names({"nodes": rows}) == {"b"}
    assert own_names({"nodes": [{"node": "a"}]}) == {"a"}, "one that starts knows only itself"


def test_replication_is_tried_of_all_other_nodes_of_the_settings(unused_tcp_port: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as peer:
        entries = [
            "a=127.0.0.1:1",
            f"b=127.0.0.1:{peer.getsockname()[1]}",
            f"c=127.0.0.1:{unused_tcp_port}",
            "d=no-such-node.invalid:8084",
        ]
        checks = replication_checks({"cluster": {"node": "a", "nodes": entries}})
        found = [finding for check in checks for finding in check.work()]
    assert [(each.subject, each.level) for each in found] == [
        ("b", Level.OK),
        ("c", Level.ERROR),
        ("d", Level.ERROR),
    ]
    assert "refused" in found[1].cause
    assert "the name no-such-node.invalid cannot be resolved here" in found[2].cause
    assert replication_checks({}) == []


def test_replication_is_tried_of_all_numbered_nodes_but_the_own() -> None:
    cluster = {"node": "n0", "nodes": ["n{n}=n{n}.nodes:8084"], "node_count": 3}
    assert [check.subject for check in replication_checks({"cluster": cluster})] == ["n1", "n2"]
