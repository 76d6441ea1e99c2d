"""The API server for tests follows the rules of a real one, and injects the requested faults."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Mapping
from typing import Any

import aiohttp
import pytest

from drills.faulty_server import BY_HAND, Faults
from drills.lease_api import LeaseApi
from drills.lease_objects import LeaseObjects

LEASES = "/apis/coordination.k8s.io/v1/namespaces/n/leases"


def lease(**spec: object) -> dict[str, Any]:
    return {"metadata": {"name": "l"}, "spec": spec}


@pytest.fixture
def objects() -> LeaseObjects:
    uids = itertools.count(1)
    return LeaseObjects(new_uid=lambda: f"uid-{next(uids)}")


def test_a_write_needs_the_version_that_it_replaces(objects: LeaseObjects) -> None:
    first = objects.post("n", lease(holder="a")).body
    # The delay is seconds long, because a busy test process could otherwise read after the write
    # was applied.
    changed = {**first, "spec": {"holder": "b"}}
    second = objects.put("n", "l", changed)
    assert second.status == 200
    assert second.body["metadata"]["resourceVersion"] > first["metadata"]["resourceVersion"]
    assert objects.put("n", "l", changed).status == 409
    del changed["metadata"]["resourceVersion"]
    assert objects.put("n", "l", changed).status == 422
    assert objects.get("n", "l").body == second.body


def test_a_write_that_changes_nothing_raises_no_version(objects: LeaseObjects) -> None:
    first = objects.post("n", lease(holder="a")).body
    assert objects.put("n", "l", first).body == first


def test_a_put_makes_the_object_unless_it_names_a_uid(objects: LeaseObjects) -> None:
    first = objects.post("n", lease(holder="a")).body
    assert objects.delete("n", "l").status == 200
    assert objects.delete("n", "l").status == 404
    assert objects.put("n", "l", first).status == 409
    assert objects.get("n", "l").status == 404
    del first["metadata"]["uid"]
    assert objects.put("n", "l", first).status == 201
    assert objects.get("n", "l").body["metadata"]["uid"] == "uid-2"


def test_only_one_makes_the_object(objects: LeaseObjects) -> None:
    made = objects.post("n", lease(holder="a"))
    assert made.status == 201
    again = objects.post("n", lease(holder="b"))
    assert (again.status, again.body["reason"]) == (409, "AlreadyExists")
    assert objects.post("n", {"metadata": {}}).status == 422
    # an object to be created must not have a version
    assert objects.post("m", made.body).status == 500
    assert objects.get("m", "l").body["reason"] == "NotFound"


@pytest.fixture
async def api() -> AsyncIterator[LeaseApi]:
    served = LeaseApi(seed=1)
    await served.start()
    yield served
    await served.close()


async def ask(
    api: LeaseApi,
    method: str,
    path: str,
    body: object = None,
    *,
    within_s: float = 20.0,
    headers: Mapping[str, str] | None = None,
) -> tuple[int, dict[str, Any]]:
    """Send a request; status 0 means that there was no response within that time."""
    timeout = aiohttp.ClientTimeout(total=within_s)
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            session.request(method, api.url + path, json=body, headers=headers) as answer,
        ):
            return answer.status, await answer.json()
    except (aiohttp.ClientError, TimeoutError):
        return 0, {}


async def test_faults_are_set_and_removed_while_it_runs(api: LeaseApi) -> None:
    status, said = await ask(
        api, "PUT", "/faults", {"drop_requests": True, "only_methods": ["GET"]}
    )
    assert (status, said["drop_requests"], said["only_methods"]) == (200, True, ["GET"])
    assert (await ask(api, "POST", LEASES, lease()))[0] == 201
    assert (await ask(api, "GET", f"{LEASES}/l", within_s=0.2))[0] == 0
    assert (await ask(api, "GET", f"{LEASES}/l", headers={BY_HAND: "1"}))[0] == 200
    assert (await ask(api, "PUT", "/faults", {"unheard_of": 1}))[0] == 400
    await ask(api, "PUT", "/faults", {"only_from": ["192.0.2.1"], "error_rate": 1})
    assert (await ask(api, "GET", f"{LEASES}/l"))[0] == 200
    await ask(api, "PUT", "/faults", {"error_rate": 1, "errors": [429]})
    assert (await ask(api, "GET", f"{LEASES}/l"))[0] == 429
    _, said = await ask(api, "GET", "/faults")
    assert said["answers"] == {"POST 201": 1, "GET none": 1, "GET 200": 2, "GET 429": 1}


async def test_a_late_write_is_applied_after_its_sender_gave_up(api: LeaseApi) -> None:
    _, first = await ask(api, "POST", LEASES, lease(holder="a"))
    api.faults = Faults(apply_late_ms=3000)
    # The delay is seconds long, because a busy test process could otherwise read after the write
    # was applied.
    changed = {**first, "spec": {"holder": "b"}}
    assert (await ask(api, "PUT", f"{LEASES}/l", changed, within_s=0.2))[0] == 0
    assert (await ask(api, "GET", f"{LEASES}/l"))[1] == first
    async with asyncio.timeout(60):
        while True:
            if (await ask(api, "GET", f"{LEASES}/l"))[1]["spec"] == {"holder": "b"}:
                break
            await asyncio.sleep(0.02)


async def test_what_is_no_request_is_refused(api: LeaseApi) -> None:
    assert (await ask(api, "POST", LEASES, [1]))[0] == 400
    async with (
        aiohttp.ClientSession() as session,
        session.post(api.url + LEASES, data=b"{") as answer,
    ):
        assert answer.status == 400
    api.tokens = {"t"}
    assert (await ask(api, "GET", f"{LEASES}/l"))[0] == 401
    assert (await ask(api, "GET", f"{LEASES}/l", headers={"Authorization": "Bearer t"}))[0] == 404
