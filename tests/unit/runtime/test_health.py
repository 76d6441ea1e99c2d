from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from services.broker.api.role_probes import role_probes
from shared.metrics.process_facts import add_process_facts
from shared.metrics.registry import Registry
from shared.runtime.health import AdminServer, Health
from tests.support.still_clock import StillClock


@pytest.fixture
def health() -> Health:
    return Health(StillClock())


@pytest.fixture
async def server(health: Health) -> AsyncIterator[AdminServer]:
    registry = Registry("reput")
    add_process_facts(registry, is_ready=lambda: health.ready, wire_version="2")
    async with AdminServer(health, registry, host="127.0.0.1", port=0) as server:
        yield server


async def get(server: AdminServer, path: str) -> tuple[int, Any]:
    url = f"http://127.0.0.1:{server.port}{path}"
    async with aiohttp.ClientSession() as session, session.get(url) as answer:
        if answer.content_type == "application/json":
            return answer.status, await answer.json()
        return answer.status, await answer.text()


async def test_a_starting_service_is_live_and_not_ready(server: AdminServer) -> None:
    assert (await get(server, "/live"))[0] == 200
    status, body = await get(server, "/ready")
    assert status == 503
    assert body == {
        "state": "starting",
        "ready": False,
        "reasons": [],
        "recovery": {"done_bytes": 0, "total_bytes": 0, "eta_seconds": 0.0},
    }


@pytest.mark.parametrize("path", ["/live", "/ready", "/startup", "/primary", "/replica"])
async def test_an_answer_of_a_probe_ends_its_line(health: Health, path: str) -> None:
    routes = role_probes(lambda: True, lambda: False)
    registry = Registry("broker")
    async with AdminServer(health, registry, host="127.0.0.1", port=0, routes=routes) as server:
        url = f"http://127.0.0.1:{server.port}{path}"
        async with aiohttp.ClientSession() as session, session.get(url) as answer:
            assert (await answer.text()).endswith("}\n")


@pytest.mark.parametrize(("method", "path"), [("GET", "/nowhere"), ("POST", "/ready")])
async def test_an_answer_to_an_unknown_call_ends_its_line_once(
    server: AdminServer, method: str, path: str
) -> None:
    url = f"http://127.0.0.1:{server.port}{path}"
    # On one connection: an answer that was kept and changed again would grow.
    async with aiohttp.ClientSession() as session:
        for _ in range(2):
            async with session.request(method, url) as answer:
                text = await answer.text()
                assert answer.status in (404, 405)
                assert text == text.strip() + "\n"


async def test_a_serving_service_is_ready(server: AdminServer, health: Health) -> None:
    health.state = "serving"
    assert (await get(server, "/ready"))[0] == 200


async def test_every_reason_is_shown_and_makes_it_unready(
    server: AdminServer, health: Health
) -> None:
    health.state = "serving"
    assert health.add_reason("disk-full", "no space")
    assert not health.add_reason("disk-full", "no space at all")
    health.add_reason("corrupt-record", "at 7")
    status, body = await get(server, "/ready")
    assert (status, body["state"]) == (503, "unready")
    assert body["reasons"] == [
        {"code": "disk-full", "detail": "no space at all"},
        {"code": "corrupt-record", "detail": "at 7"},
    ]
    assert (await get(server, "/live"))[0] == 200
    assert health.clear_reason("disk-full")
    assert health.clear_reason("corrupt-record")
    assert not health.clear_reason("corrupt-record")
    assert health.ready


async def test_a_loop_that_stood_still_is_not_live(server: AdminServer, health: Health) -> None:
    assert isinstance(health.clock, StillClock)
    health.clock.now_s += 11
    assert (await get(server, "/live"))[0] == 503


def test_the_estimate_follows_the_rate_and_is_unknown_before_there_is_one(health: Health) -> None:
    assert isinstance(health.clock, StillClock)
    recovery = health.recovery
    recovery.progress(0, 0)  # queues are looked at: how much log there is to walk is not known
    health.clock.now_s += 5
    recovery.progress(100, 1100)
    assert recovery.eta_seconds() is None
    health.clock.now_s += 2
    recovery.progress(300, 1100)
    assert recovery.eta_seconds() == 8.0
    recovery.progress(1100, 1100)
    assert recovery.eta_seconds() == 0.0


async def test_metrics_are_prometheus_text_with_process_facts(server: AdminServer) -> None:
    status, text = await get(server, "/metrics")
    assert status == 200
    (info,) = [line for line in text.splitlines() if line.startswith("tidemark_node_info")]
    assert 'store_format="1",version=' in info
    assert info.endswith('wire_version="2"} 1.0')
    assert "\ntidemark_process_anonymous_memory_bytes " in text
    assert "\nprocess_open_fds " in text
    assert "\ntidemark_ready 0.0\n" in text


async def test_the_start_is_judged_on_the_admin_port(server: AdminServer, health: Health) -> None:
    assert (await get(server, "/startup"))[0] == 503
    health.state = "recovering"
    health.recovery.progress(10, 100)
    status, body = await get(server, "/startup")
    assert (status, body["startup"], body["recovery"]["done_bytes"]) == (200, "advancing", 10)
    health.state = "serving"
    assert (await get(server, "/startup"))[1]["startup"] == "over"


def test_reasons_end_with_the_role_except_those_that_last(health: Health) -> None:
    health.state = "serving"
    health.add_reason("no-role", "ha has not spoken")
    health.add_reason("corrupt-record", "a CRC differs", lasting=True)
    health.end_role()
    assert [reason.code for reason in health.reasons] == ["corrupt-record"]
    # Said again by a role, it lasts all the same; taken back and said anew, it does not.
    health.add_reason("corrupt-record", "another CRC differs")
    health.end_role()
    assert [reason.detail for reason in health.reasons] == ["another CRC differs"]
    health.clear_reason("corrupt-record")
    health.add_reason("corrupt-record", "a third")
    health.end_role()
    assert health.ready
