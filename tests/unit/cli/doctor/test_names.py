"""Name services and their answers: reachable, of one cluster, complete, and with the brokers."""

from __future__ import annotations

import email.utils
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from shared.cluster.routes import Role, Route, RouteGroup, RouteNode
from tidemark.cli.doctor.findings import Finding, Level
from tidemark.cli.doctor.names import (
    Answer,
    Subject,
    bounds,
    check_names,
    findings,
    refused,
    registered,
    secret,
    subject_of,
)
from tidemark.cli.doctor.nodes import check_nodes
from tidemark.cli.doctor.settings import differing, secret_path

ONE, TWO = "http://names-0:9870", "http://names-1:9870"
NOTHING = Subject(frozenset(), (), None, frozenset(), needed=False, broker_admin=None)
SERVICE = {
    "cluster": "shop",
    "host": "0.0.0.0",
    "port": 9870,
    "admin_host": "127.0.0.1",
    "admin_port": 9871,
    "peers": ["http://names-1:9870/"],
    "groups": ["g0"],
    "secret_file": None,
}
BROKER = {
    "host": "0.0.0.0",
    "port": 8080,
    "admin_host": "127.0.0.1",
    "admin_port": 8081,
    "cluster": {"name": "shop", "secret_file": "/c"},
    "names": {"urls": [ONE, TWO], "secret_file": None},
}


def group(name: str, *nodes: str, master: str | None = "n0", role: Role = "slave") -> RouteGroup:
    listed = [
        RouteNode(each, "master" if each == master else role, f"http://{name}-{each}:8080", None)
        for each in nodes
    ]
    return RouteGroup(name, 3, master, listed, topics=1)


def route(
    *groups: RouteGroup,
    cluster: str = "shop",
    names: Sequence[str] = (ONE, TWO),
    missing: Sequence[str] = (),
) -> Route:
    shown = Route(cluster, "", True, not missing, [*missing], [*names], [*groups])
    return msgspec.structs.replace(shown, version=str(hash(msgspec.json.encode(shown))))


def codes(found: Sequence[Finding]) -> dict[str, str]:
    return {each.subject: each.code for each in found if each.code}


@pytest.mark.parametrize(
    ("needed", "others", "level"),
    [(True, False, Level.ERROR), (True, True, Level.WARNING), (False, False, Level.WARNING)],
)
def test_a_name_service_without_an_answer_is_an_error_if_it_is_needed_and_the_only_one(
    needed: bool, others: bool, level: Level
) -> None:
    answers = [Answer(ONE, None, "refused")]
    answers += [Answer(TWO, route(), skew_s=0.0)] if others else []
    found = findings(NOTHING._replace(needed=needed), answers)[0]
    assert (found.code, found.level) == ("doctor-names-unreachable", level)
    assert "refused" in found.cause


def test_healthy_name_services_have_no_finding() -> None:
    answers = [Answer(url, route(group("g0", "n0", "n1")), skew_s=0.0) for url in (ONE, TWO)]
    subject = NOTHING._replace(cluster="shop", expected=frozenset({"g0"}))
    own = route(group("g0", "n0", "n1"), cluster="shop", names=[ONE])
    found = [*findings(subject, answers), *registered([own], answers, "")]
    assert {each.level for each in found} == {Level.OK}
    assert {each.check for each in found} == {
        "names.api", "names.cluster", "names.complete", "names.clock", "names.peers",
        "names.registered",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("answer", "check", "code"),
    [
        (Answer(ONE, route(cluster="test"), skew_s=0.0), "names.cluster", "wrong-cluster"),
        (Answer(ONE, route(missing=["g7"]), skew_s=0.0), "names.complete", "route-incomplete"),
        (Answer(ONE, route(group("g9", "n0")), skew_s=0.0), "names.groups", "doctor-names-groups"),
        (Answer(ONE, route(), skew_s=3.0), "names.clock", "doctor-clock-wrong"),
        (Answer(ONE, route()), "names.clock", "doctor-cannot-tell"),
    ],
)
def test_what_is_wrong_with_an_answer_is_named(answer: Answer, check: str, code: str) -> None:
    subject = NOTHING._replace(cluster="shop", expected=frozenset({"g0"}))
    bad = [each for each in findings(subject, [answer]) if each.code]
    assert [(each.check, each.code) for each in bad] == [(check, code)]


def test_a_clock_beyond_the_limit_of_signatures_is_an_error() -> None:
    def level(skew_s: float) -> Level:
        found = findings(NOTHING, [Answer(ONE, route(), skew_s=skew_s)])
        return next(each.level for each in found if each.check == "names.clock")

    assert [level(each) for each in (1.0, -290.0, -301.0)] == [
        Level.OK,
        Level.WARNING,
        Level.ERROR,
    ]


def test_name_services_that_list_different_ones_are_named() -> None:
    answers = [Answer(ONE, route(names=[ONE])), Answer(TWO, route(names=[ONE, TWO]))]
    (found,) = [each for each in findings(NOTHING, answers) if each.check == "names.peers"]
    assert (found.level, found.code) == (Level.WARNING, "doctor-names-differ")
    assert f"{ONE} has {ONE};" in found.cause


@pytest.mark.parametrize(
    ("known", "cause"),
    [
        (route(), "n0, n1 of broker group g0 is not registered there"),
        (route(group("g0", "n0")), "n1 of broker group g0 is not registered there"),
        (route(group("g0", "n0", "n1", master="n1")), "is n0, and n1 is registered"),
        (route(group("g0", "n0", "n1", master=None)), "is n0, and none is registered"),
    ],
)
def test_a_node_or_a_master_that_a_name_service_does_not_know_is_an_error(
    known: Route, cause: str
) -> None:
    own = route(group("g0", "n0", "n1"), names=[ONE])
    (found,) = registered([own], [Answer(TWO, known)], "; refused: bad-signature 3 times")
    assert (found.level, found.code) == (Level.ERROR, "doctor-not-registered")
    assert cause in found.cause
    assert found.cause.endswith("bad-signature 3 times")


def test_a_node_that_does_not_answer_its_own_group_need_not_be_registered() -> None:
    own = route(group("g0", "n0", "n1", role="unknown"))
    (found,) = registered([own], [Answer(ONE, route(group("g0", "n0"), names=[ONE]))], "")
    assert found.level is Level.OK


def test_a_name_service_is_not_compared_with_itself() -> None:
    own = route(group("g0", "n0"))
    assert list(registered([own], [Answer(ONE, own)], "")) == []


def test_refusals_of_the_local_broker_are_counted_by_code() -> None:
    text = (
        'tidemark_broker_names_refused_total{code="unreachable"} 2.0\n'
        'tidemark_broker_names_refused_total{code="bad-signature"} 7.0\n'
    )
    assert refused(text) == (
        "; the local broker was refused: bad-signature 7 times, unreachable 2 times"
    )
    assert refused("") == ""


def test_the_settings_say_which_name_services_are_asked() -> None:
    found = subject_of(SERVICE, BROKER, ["http://b:8080"])
    assert found.listed == {ONE, TWO}
    assert found.given == ("http://b:8080", "http://127.0.0.1:8080", "http://127.0.0.1:9870")
    assert (found.cluster, found.expected) == ("shop", frozenset({"g0"}))
    assert found.needed
    assert found.broker_admin == "http://127.0.0.1:8081"
    alone = {**BROKER, "names": {"urls": [], "secret_file": None}}
    assert subject_of(None, alone, []) == NOTHING
    assert subject_of(SERVICE, None, []).needed is False


def test_a_port_that_others_reach_needs_a_secret() -> None:
    assert (secret(SERVICE).level, secret(SERVICE).code) == (Level.WARNING, "doctor-names-open")
    assert secret({**SERVICE, "host": "127.0.0.1"}).level is Level.OK
    assert secret({**SERVICE, "secret_file": "/s"}).level is Level.OK


def test_each_service_has_its_own_secret() -> None:
    assert secret_path("names", {**SERVICE, "secret_file": "/s"}) == "/s"
    assert secret_path("names", SERVICE) is None
    assert secret_path("broker", BROKER) == "/c"
    own = {"urls": [ONE], "secret_file": "/n"}
    assert secret_path("broker", {**BROKER, "names": own}) == "/n"
    assert secret_path("broker", {**BROKER, "names": {**own, "urls": []}}) is None
    assert secret_path("reput", {}) is None
    assert secret_path("ha", {"cluster": {"secret_file": "/h"}}) == "/h"


def test_settings_of_a_name_service_are_not_compared_with_those_of_a_node() -> None:
    assert differing({"names": SERVICE, "broker": BROKER}) == []


@asynccontextmanager
async def serving(shown: Route, metrics: str = "", ahead_s: float = 0.0) -> AsyncIterator[str]:
    """A name service: routes, metrics, and the error for every other call."""

    async def answer(request: web.Request) -> web.Response:
        date = email.utils.formatdate(time.time() + ahead_s, usegmt=True)
        if request.path == "/v1/route":
            body = msgspec.json.encode(shown)
            return web.Response(body=body, headers={"Date": date})
        if request.path == "/metrics":
            return web.Response(text=metrics)
        fields: dict[str, Any] = {"code": "unknown-call", "detail": "there is no call."}
        return web.json_response(fields, status=404)

    application = web.Application()
    application.router.add_get("/{path:.*}", answer)
    async with TestServer(application) as server:
        yield str(server.make_url("/")).rstrip("/")


async def test_name_services_are_found_by_the_routes_of_a_given_one() -> None:
    async with serving(route(group("g0", "n0"), names=[]), ahead_s=60) as other:
        shown = route(group("g0", "n0"), group("g1", "n0"), names=[other, "http://127.0.0.1:1"])
        async with serving(shown) as given:
            found = await check_names(NOTHING._replace(given=(given,), needed=True))
            assert await check_nodes([given]) == [], "it is no node"
    assert codes(found) == {
        "http://127.0.0.1:1": "doctor-names-unreachable",
        other: "doctor-clock-wrong",
        f"g1 at {other}": "doctor-not-registered",
    }


async def test_bounds_of_a_running_name_service_are_read_from_its_metrics() -> None:
    text = (
        "# TYPE tidemark_names_bound_used_ratio gauge\n"
        'tidemark_names_bound_used_ratio{bound="groups_max"} 0.2\n'
        'tidemark_names_bound_used_ratio{bound="entries_max"} 0.93\n'
    )
    async with serving(route(), text) as admin:
        found = {each.subject: each for each in await bounds(admin)}
    assert found["groups_max"].level is Level.OK
    assert (found["entries_max"].code, found["entries_max"].value) == ("names-limit", 93.0)
    (stopped,) = await bounds("http://127.0.0.1:1")
    assert stopped.level is Level.UNKNOWN
