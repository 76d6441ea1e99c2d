"""The etcd of the lease, as the doctor finds it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from aiohttp import web

from tidemark.cli.doctor.findings import Level
from tidemark.cli.doctor.lease import _Member, checks, findings

STATUS = {"header": {"cluster_id": "7"}, "version": "3.4.23", "leader": "9"}


def test_each_member_of_one_cluster_with_a_leader_is_well() -> None:
    found = findings([_Member("http://a:1", STATUS), _Member("http://b:1", STATUS)])
    assert [each.level for each in found] == [Level.OK, Level.OK]
    assert found[0].cause == "etcd 3.4.23 with a leader"


@pytest.mark.parametrize("leader", [{}, {"leader": "0"}])
def test_a_member_without_a_leader_is_an_error(leader: dict[str, str]) -> None:
    without = {name: value for name, value in STATUS.items() if name != "leader"} | leader
    (found,) = findings([_Member("http://a:1", without)])
    assert (found.level, found.code) == (Level.ERROR, "doctor-etcd-leaderless")


def test_endpoints_of_two_clusters_are_an_error() -> None:
    other = STATUS | {"header": {"cluster_id": "8"}}
    found = findings([_Member("http://a:1", STATUS), _Member("http://b:1", other)])[-1]
    assert (found.code, found.value) == ("doctor-etcd-clusters", 2)


def test_a_lease_elsewhere_needs_no_etcd() -> None:
    assert checks({}) == []
    assert checks({"cluster": {"etcd_endpoints": []}}) == []


def test_certificates_that_cannot_be_read_are_bad_settings(tmp_path: Path) -> None:
    cluster = {
        "etcd_endpoints": ["https://127.0.0.1:1"],
        "etcd_tls_ca_file": str(tmp_path / "missing"),
    }
    (check,) = checks({"cluster": cluster})
    (found,) = check.work()
    assert (found.level, found.code) == (Level.ERROR, "bad-config")


def asked(answer: Callable[[web.Request], Awaitable[web.Response]]) -> str:
    """Return the cause that the check gives for a server with this answer."""

    async def serve() -> str:
        app = web.Application()
        app.router.add_post("/v3/maintenance/status", answer)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        (check,) = checks({"cluster": {"etcd_endpoints": [url]}})
        (found,) = await asyncio.to_thread(check.work)
        await runner.cleanup()
        return found.cause

    return asyncio.run(serve())


def test_the_endpoint_itself_is_asked() -> None:
    async def well(request: web.Request) -> web.Response:
        return web.json_response(STATUS)

    async def strange(request: web.Request) -> web.Response:
        return web.json_response([], status=418)

    assert asked(well) == "etcd 3.4.23 with a leader"
    assert "status 418, not that of etcd's JSON gateway" in asked(strange)
    (check,) = checks({"cluster": {"etcd_endpoints": ["http://127.0.0.1:1"]}})
    (found,) = check.work()
    assert found.code == "doctor-etcd-unreachable"
