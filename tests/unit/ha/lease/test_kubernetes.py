"""The lease as a Kubernetes object, against an API server that behaves, and one that does not."""

from __future__ import annotations

import asyncio
import datetime
import itertools
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from drills.faulty_server import Faults
from drills.lease_api import LeaseApi
from services.ha.core.effects import LeaseGet
from services.ha.core.events import LeaseOutcome
from services.ha.lease import kubernetes
from services.ha.lease.interface import Outcome, carry_out
from services.ha.lease.kubernetes import KubernetesLease
from services.ha.lease.value import Stored
from shared.cluster.time_rules import LOCAL
from tests.support.lease_campaigns import Campaigns
from tests.support.lease_contract import FREE, HOLDER, LeaseContract, made, read
from tidemark.offsets import Epoch

NAME = "tidemark-g0"
NAMESPACE = "shop"
TIMEOUT_MS = 10_000
SHORT_MS = 1000
"""Timeout for requests that get no answer."""
NOW = datetime.datetime(2030, 1, 2, 3, 4, 5, tzinfo=datetime.UTC)


@pytest.fixture
async def api() -> AsyncIterator[LeaseApi]:
    served = LeaseApi(seed=1)
    await served.start()
    yield served
    await served.close()


@pytest.fixture
async def lease(api: LeaseApi, tmp_path: Path) -> AsyncIterator[KubernetesLease]:
    store = of(api, tmp_path)
    yield store
    await store.close()


@pytest.fixture
async def hasty(api: LeaseApi, tmp_path: Path) -> AsyncIterator[KubernetesLease]:
    """A client of the same object with that timeout."""
    store = of(api, tmp_path, timeout_ms=SHORT_MS)
    yield store
    await store.close()


def of(api: LeaseApi, account_dir: Path, timeout_ms: int = TIMEOUT_MS) -> KubernetesLease:
    return KubernetesLease(
        NAME,
        namespace=NAMESPACE,
        url=api.url,
        pod="a",
        lease_ms=LOCAL.lease_ms,
        timeout_ms=timeout_ms,
        account_dir=account_dir,
        now=lambda: NOW,
    )


def raw(api: LeaseApi) -> dict[str, Any]:
    return api.objects.get(NAMESPACE, NAME).body


def edit(api: LeaseApi, **annotations: str) -> None:
    found = raw(api)
    found["metadata"]["annotations"] |= annotations
    assert api.objects.put(NAMESPACE, NAME, found).status == 200


async def seen(hasty: KubernetesLease) -> Stored:
    """The object, read by a client whose timeout may be too short for a busy machine."""
    async with asyncio.timeout(60):
        while (outcome := await hasty.get()).stored is None:
            pass
    return outcome.stored


class TestContract(LeaseContract):
    """Of the object ``lease``."""


async def test_people_and_other_tools_can_read_it(lease: KubernetesLease, api: LeaseApi) -> None:
    first = await made(lease)
    held = await lease.put(FREE._replace(holder=HOLDER, epoch=Epoch(2)), first)
    assert held.stored is not None
    found = raw(api)
    assert found["spec"] == {
        "holderIdentity": f"a/{'1f' * 16}/0123456789abcdef",
        "leaseDurationSeconds": 3,
        "acquireTime": "2030-01-02T03:04:05.000000Z",
        "renewTime": "2030-01-02T03:04:05.000000Z",
        "leaseTransitions": 1,
    }
    assert found["metadata"]["annotations"]["isr"] == f'[["a","{"1f" * 16}"]]'
    await lease.put(held.stored.lease._replace(renewed=9), held.stored)
    assert raw(api)["spec"]["leaseTransitions"] == 1


async def test_what_others_put_into_the_object_stays(lease: KubernetesLease, api: LeaseApi) -> None:
    await made(lease)
    found = raw(api)
    found["metadata"]["labels"] = {"team": "shop"}
    found["metadata"]["annotations"]["note"] = "do not delete"
    found["spec"]["strategy"] = "of a later release"
    api.objects.put(NAMESPACE, NAME, found)
    stored = await read(lease)
    held = stored.lease._replace(holder=HOLDER, handover_to="b", paused=True)
    outcome = await lease.put(held, stored)
    assert outcome.stored is not None
    await lease.put(FREE._replace(renewed=8), outcome.stored)
    assert raw(api)["metadata"]["labels"] == {"team": "shop"}
    assert raw(api)["metadata"]["annotations"]["note"] == "do not delete"
    assert raw(api)["spec"]["strategy"] == "of a later release"
    # And an annotation that was ours, and is none any more, is removed.
    assert "handoverTo" not in raw(api)["metadata"]["annotations"]
    assert "paused" not in raw(api)["metadata"]["annotations"]


async def test_a_late_write_does_not_revive_a_deleted_object(
    lease: KubernetesLease, api: LeaseApi
) -> None:
    stored = await made(lease)
    without_uid = raw(api)
    api.objects.delete(NAMESPACE, NAME)
    assert await lease.put(FREE, stored) == Outcome(LeaseOutcome.CONFLICT)
    assert await lease.get() == Outcome(LeaseOutcome.ABSENT)
    # This is due to the uid: without it the server creates the object.
    del without_uid["metadata"]["uid"]
    assert api.objects.put(NAMESPACE, NAME, without_uid).status == 201
    assert (await lease.put(FREE, stored)).outcome is LeaseOutcome.CONFLICT


@pytest.mark.parametrize("status", [401, 403, 429, 500, 503])
async def test_an_error_of_the_server_is_unknown_and_says_which(
    lease: KubernetesLease, api: LeaseApi, status: int
) -> None:
    stored = await made(lease)
    api.faults = Faults(error_rate=1, errors=(status,))
    for outcome in (await lease.get(), await lease.put(FREE, stored), await lease.create(FREE)):
        assert outcome.outcome is LeaseOutcome.UNKNOWN
        assert outcome.reason == f"the API server answered {status}: injected"


def test_a_refusal_without_a_message_gives_the_reason() -> None:
    answered = "the API server answered 404: "
    assert kubernetes._refusal(404, {"reason": "NotFound"}) == f"{answered}NotFound"
    assert kubernetes._refusal(404, {"kind": "Status"}) == f"{answered}without a message"


async def test_only_a_404_of_the_object_itself_is_an_absence(
    api: LeaseApi, tmp_path: Path, lease: KubernetesLease
) -> None:
    api.faults = Faults(error_rate=1, errors=(404,))
    assert (await lease.get()).outcome is LeaseOutcome.UNKNOWN
    api.faults = Faults()
    elsewhere = KubernetesLease(
        NAME,
        namespace=NAMESPACE,
        url=f"{api.url}/no/such",
        pod="a",
        lease_ms=3000,
        timeout_ms=TIMEOUT_MS,
        account_dir=tmp_path,
    )
    assert (await elsewhere.get()).outcome is LeaseOutcome.UNKNOWN
    await elsewhere.close()


async def test_no_answer_is_unknown_within_the_time_out(
    lease: KubernetesLease, hasty: KubernetesLease, api: LeaseApi
) -> None:
    await made(lease)
    stored = await seen(hasty)
    api.faults = Faults(drop_requests=True)
    assert (await hasty.put(FREE, stored)).outcome is LeaseOutcome.UNKNOWN
    # A store that waits for longer is given up by the code that sends a request.
    answer = await carry_out(lease, LeaseGet(7), SHORT_MS)
    assert (answer.request, answer.outcome) == (7, LeaseOutcome.UNKNOWN)
    assert answer.reason == f"no answer within {SHORT_MS} ms"
    await api.close()
    refused = await lease.get()
    assert refused.outcome is LeaseOutcome.UNKNOWN
    assert refused.reason == (
        f"the API server at {api.url.removeprefix('http://')} is not reached: "
        "nothing accepts connections at its address"
    )


async def test_a_lost_answer_is_unknown_although_the_write_was_applied(
    lease: KubernetesLease, hasty: KubernetesLease, api: LeaseApi
) -> None:
    await made(lease)
    stored = await seen(hasty)
    api.faults = Faults(drop_answers=True)
    assert (await hasty.put(FREE._replace(renewed=5), stored)).outcome is LeaseOutcome.UNKNOWN
    api.faults = Faults()
    async with asyncio.timeout(60):
        while True:
            if (await read(lease)).lease.renewed == 5:
                break
            await asyncio.sleep(0.01)


async def test_an_object_edited_into_nonsense_is_unknown_and_says_what(
    lease: KubernetesLease, api: LeaseApi
) -> None:
    await made(lease)
    edit(api, epoch="four")
    outcome = await lease.get()
    assert outcome.outcome is LeaseOutcome.UNKNOWN
    assert "epoch is 'four'" in outcome.reason


async def test_a_token_that_changed_is_read_again(
    lease: KubernetesLease, api: LeaseApi, tmp_path: Path
) -> None:
    api.tokens = {"first"}
    assert (await lease.get()).outcome is LeaseOutcome.UNKNOWN
    (tmp_path / "token").write_text("first\n")
    assert (await lease.get()).outcome is LeaseOutcome.ABSENT
    api.tokens = {"second"}
    assert "401" in (await lease.get()).reason
    (tmp_path / "token").write_text("second\n")
    assert (await lease.get()).outcome is LeaseOutcome.ABSENT


async def test_the_pod_shows_its_role(lease: KubernetesLease, api: LeaseApi) -> None:
    assert await lease.announce("master") == ""
    assert api.objects.get_pod(NAMESPACE, "a").body["metadata"]["labels"] == {"role": "master"}
    api.faults = Faults(error_rate=1, errors=(403,))
    assert await lease.announce("slave") == "the API server answered 403: injected"
    await api.close()
    assert "nothing accepts connections at its address" in await lease.announce("slave")


def test_outside_of_a_pod_an_address_is_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def make() -> KubernetesLease:
        return KubernetesLease(
            NAME, namespace="", url="", pod="a", lease_ms=1, timeout_ms=1, account_dir=tmp_path
        )

    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(ValueError, match="this is not a pod"):
        make()
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    assert make()._url == "https://10.0.0.1:443"
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
    assert make()._url == "https://[fd00::1]:443"


@pytest.mark.parametrize("seed", range(2))
async def test_two_sessions_agree_on_every_epoch_over_a_server_that_does_everything_wrong(
    api: LeaseApi, tmp_path: Path, seed: int
) -> None:
    """Drops, late and repeated writes, errors, overtaking requests: one holder of each epoch."""
    api._chance = random.Random(seed)
    rules = LOCAL._replace(renew_ms=20, request_timeout_ms=60)
    campaigns = Campaigns(rules, seed)
    first = of(api, tmp_path)
    await made(first)
    await first.close()

    api.faults = Faults(
        jitter_ms=10, drop_requests=0.05, drop_answers=0.1, duplicate=0.3, error_rate=0.2
    )
    owns = [HOLDER._replace(node=name, process=f"000000000000000{name}") for name in "abc"]
    tasks = [asyncio.create_task(campaigns.run(of(api, tmp_path), own)) for own in owns]
    # Not for a set time: on a busy machine most requests take longer than their 60 ms, and the
    # three get the lease late. At least six turns, so that every fault occurs.
    async with asyncio.timeout(120):
        for turn, late_ms in enumerate(itertools.cycle((0, 80, 0, 30, 0))):
            if (
                turn >= 6
                and len(set(campaigns.holders.values())) == 3
                and len(campaigns.holders) > 10
            ):
                break
            api.faults = Faults(**(vars(api.faults) | {"apply_late_ms": late_ms}))
            await asyncio.sleep(0.2)
    api.faults = Faults()
    campaigns.stop.set()
    sessions = await asyncio.wait_for(asyncio.gather(*tasks), 120)
    assert all(session.unsettled is None for session in sessions)
