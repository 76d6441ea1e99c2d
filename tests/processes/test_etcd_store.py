"""The lease as a key of a real etcd: one that works, and one that fails in every way."""

from __future__ import annotations

import asyncio
import itertools
import json
import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from drills.etcd_cluster import EtcdCluster, encoded
from services.ha.core.effects import LeaseGet, LeasePut
from services.ha.core.events import LeaseAnswered, LeaseOutcome
from services.ha.lease.etcd import EtcdLease
from services.ha.lease.etcd_gateway import EtcdGateway, Login
from services.ha.lease.interface import Outcome, carry_out
from services.ha.lease.value import Stored
from shared.cluster.config import ClusterConfig
from shared.cluster.etcd_tls import etcd_tls
from shared.cluster.time_rules import LOCAL
from tests.support import certificates
from tests.support.cut_link import CutLink
from tests.support.etcd import local_etcd
from tests.support.lease_campaigns import Campaigns
from tests.support.lease_contract import FREE, HOLDER, LeaseContract, made, read
from tidemark.offsets import Epoch

TIMEOUT_MS = 20_000
SHORT_MS = 1000
"""Timeout for requests that get no answer."""
KEYS = (f"/tidemark/test-g{number}" for number in itertools.count())


@pytest.fixture(scope="module")
def shared_etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdCluster]:
    """For tests that do not harm it; each has its own key."""
    with local_etcd(tmp_path_factory.mktemp("etcd")) as etcd:
        etcd.wait_serving()
        yield etcd


@pytest.fixture
def one(tmp_path: Path) -> Iterator[EtcdCluster]:
    with local_etcd(tmp_path / "etcd") as etcd:
        etcd.wait_serving()
        yield etcd


@pytest.fixture
def three(tmp_path: Path) -> Iterator[EtcdCluster]:
    with local_etcd(tmp_path / "etcd", 3) as etcd:
        etcd.wait_serving()
        yield etcd


@pytest.fixture
def key() -> str:
    return next(KEYS)


@pytest.fixture
async def lease(shared_etcd: EtcdCluster, key: str) -> AsyncIterator[EtcdLease]:
    store = of(shared_etcd.endpoints, key)
    yield store
    await store.close()


def of(endpoints: tuple[str, ...], key: str, login: Login | None = None) -> EtcdLease:
    return EtcdLease(EtcdGateway(endpoints, timeout_ms=TIMEOUT_MS, login=login), key)


async def asked(
    lease: EtcdLease, effect: LeaseGet | LeasePut | None = None, timeout_ms: int = TIMEOUT_MS
) -> LeaseAnswered:
    return await carry_out(lease, effect or LeaseGet(1), timeout_ms)


async def read_in_the_end(lease: EtcdLease) -> Stored:
    """The lease, once an etcd that returns has a leader again."""
    async with asyncio.timeout(60):
        while (answer := await asked(lease, timeout_ms=SHORT_MS)).stored is None:
            assert answer.outcome is LeaseOutcome.UNKNOWN, answer
    return answer.stored


async def unknown_with(lease: EtcdLease, words: str) -> str:
    """Return the reason of an unknown outcome, once it has these words."""
    async with asyncio.timeout(60):
        while True:
            answer = await asked(lease, timeout_ms=SHORT_MS)
            assert answer.outcome is LeaseOutcome.UNKNOWN, answer
            if words in answer.reason:
                return answer.reason


# -- compare and set ------------------------------------------------------------------------------


class TestContract(LeaseContract):
    """Of the key ``lease``."""


async def test_people_and_other_tools_can_read_it(
    lease: EtcdLease, shared_etcd: EtcdCluster, key: str
) -> None:
    first = await made(lease)
    await lease.put(FREE._replace(holder=HOLDER, epoch=Epoch(2)), first)
    found = shared_etcd.read(key)
    assert found is not None
    fields = json.loads(found["text"])
    assert fields["holder"] == f"a/{'1f' * 16}/0123456789abcdef"
    assert (fields["epoch"], fields["isr"]) == ("2", f'[["a","{"1f" * 16}"]]')


async def test_a_late_write_does_not_revive_a_deleted_key(
    lease: EtcdLease, shared_etcd: EtcdCluster, key: str
) -> None:
    stored = await made(lease)
    shared_etcd.delete(key)
    assert await lease.put(FREE, stored) == Outcome(LeaseOutcome.ABSENT)
    assert await lease.get() == Outcome(LeaseOutcome.ABSENT)
    again = await made(lease)
    assert again.uid != stored.uid
    assert await lease.put(FREE, stored) == Outcome(LeaseOutcome.CONFLICT)


async def test_an_edit_by_hand_refuses_the_next_write_and_is_then_its_base(
    lease: EtcdLease, shared_etcd: EtcdCluster, key: str
) -> None:
    stored = await made(lease)
    assert shared_etcd.edit(key, paused="true")
    assert await lease.put(FREE, stored) == Outcome(LeaseOutcome.CONFLICT)
    edited = await read(lease)
    assert edited.lease == FREE._replace(paused=True)
    assert (await lease.put(FREE._replace(renewed=8), edited)).outcome is LeaseOutcome.APPLIED


@pytest.mark.parametrize("text", ["no JSON", "[]", '{"holder": ""}', "\x00"])
async def test_a_key_edited_into_nonsense_is_unknown_and_says_what(
    lease: EtcdLease, shared_etcd: EtcdCluster, key: str, text: str
) -> None:
    await made(lease)
    shared_etcd.write(key, text)
    answer = await asked(lease)
    assert answer.outcome is LeaseOutcome.UNKNOWN
    assert answer.reason.startswith(("its content is not JSON", "epoch is missing")) or (
        answer.reason == "its content is not a JSON object"
    )


async def test_the_key_outlives_a_lease_of_etcd_that_was_attached_by_hand(
    lease: EtcdLease, shared_etcd: EtcdCluster, key: str
) -> None:
    # Any write of ours detaches it; what we write has none.
    await made(lease)
    granted = shared_etcd.call("lease/grant", {"TTL": "3600"})["ID"]
    found = shared_etcd.read(key)
    assert found is not None
    assert "lease" not in found
    shared_etcd.write(key, found["text"], lease=granted)
    attached = await read(lease)
    assert (await lease.put(FREE._replace(renewed=4), attached)).outcome is LeaseOutcome.APPLIED
    shared_etcd.call("lease/revoke", {"ID": granted})
    assert (await read(lease)).lease.renewed == 4


async def test_a_compaction_changes_nothing(lease: EtcdLease, shared_etcd: EtcdCluster) -> None:
    stored = await made(lease)
    shared_etcd.compact()
    assert await read(lease) == stored
    assert (await lease.put(FREE._replace(renewed=1), stored)).outcome is LeaseOutcome.APPLIED


# -- etcd fails -----------------------------------------------------------------------------------


async def test_a_restart_costs_no_call(one: EtcdCluster, key: str) -> None:
    lease = of(one.endpoints, key)
    stored = await made(lease)
    one.kill()
    refused = await asked(lease)
    assert refused.outcome is LeaseOutcome.UNKNOWN
    assert refused.reason == (
        f"etcd at {one.endpoints[0]}: nothing accepts connections at its address"
    )
    one.start_killed()
    one.wait_serving()
    assert await read(lease) == stored
    # The kept connection ends with the process; the call after it makes another one.
    one.kill()
    one.start_killed()
    one.wait_serving()
    assert (await lease.put(FREE._replace(renewed=1), stored)).outcome is LeaseOutcome.APPLIED
    await lease.close()


async def test_a_member_that_is_down_is_passed_over(three: EtcdCluster, key: str) -> None:
    lease = of(three.endpoints, key)
    stored = await made(lease)
    three.kill("e0")
    applied = await carry_out(lease, LeasePut(1, FREE._replace(renewed=1), stored), TIMEOUT_MS)
    assert applied.outcome is LeaseOutcome.APPLIED, applied
    assert (await read_in_the_end(lease)).lease.renewed == 1
    await lease.close()


async def test_a_member_that_is_silent_costs_one_time_out(three: EtcdCluster, key: str) -> None:
    links = [CutLink(int(endpoint.rpartition(":")[2])) for endpoint in three.endpoints]
    lease = of(tuple(f"http://127.0.0.1:{link.port}" for link in links), key)
    stored = await made(lease)
    links[0].cut()
    lost = await asked(lease, LeasePut(1, FREE._replace(renewed=1), stored), SHORT_MS)
    assert lost.outcome is LeaseOutcome.UNKNOWN
    assert lost.reason == f"no answer within {SHORT_MS} ms"
    assert (await read(lease)).lease == FREE
    links[0].heal()
    links[1].cut()
    links[2].cut()
    assert (await asked(lease, timeout_ms=SHORT_MS)).outcome is LeaseOutcome.UNKNOWN
    assert (await read_in_the_end(lease)).lease == FREE
    await lease.close()
    for link in links:
        link.close()


async def test_a_member_alone_does_not_answer_with_what_it_has(
    three: EtcdCluster, key: str
) -> None:
    lease = of(three.endpoints, key)
    stored = await made(lease)
    await lease.close()
    alone = of(three.endpoints[:1], key)
    assert await read(alone) == stored
    three.pause("e1", "e2")
    reading = await asked(alone, timeout_ms=SHORT_MS)
    writing = await asked(alone, LeasePut(1, FREE._replace(renewed=1), stored), SHORT_MS)
    assert (reading.outcome, writing.outcome) == (LeaseOutcome.UNKNOWN, LeaseOutcome.UNKNOWN)
    three.resume("e1", "e2")
    # The write may be applied now, or never; the session repeats it on the same version.
    assert (await read_in_the_end(alone)).lease in (FREE, FREE._replace(renewed=1))
    await alone.close()


async def test_without_a_quorum_the_outcome_is_unknown_and_nothing_is_lost(
    three: EtcdCluster, key: str
) -> None:
    lease = of(three.endpoints, key)
    stored = await made(lease)
    three.kill("e1", "e2")
    reason = await unknown_with(lease, f"{three.endpoints[0]} answered 503: no leader")
    assert reason == (
        f"etcd at {three.endpoints[0]} answered 503: no leader; start its members, or connect "
        "them: it needs more than half of them"
    )
    three.start("e1", "e2")
    assert await read_in_the_end(lease) == stored
    await lease.close()


async def test_a_lost_store_is_an_absence_and_a_late_write_of_before_finds_no_base(
    one: EtcdCluster, key: str
) -> None:
    lease = of(one.endpoints, key)
    stored = await made(lease)
    late = (await lease.put(FREE._replace(renewed=1), stored)).stored
    assert late is not None
    one.lose_data()
    # The kept connection may have ended with the process.
    assert (await asked(lease)).outcome is LeaseOutcome.ABSENT
    # The same revisions come again, with other values.
    again = await made(lease)
    other = (await lease.put(FREE._replace(renewed=9), again)).stored
    assert other is not None
    assert (other.uid, other.version.partition("-")[0]) == (
        late.uid,
        late.version.partition("-")[0],
    )
    assert await lease.put(FREE._replace(renewed=2), late) == Outcome(LeaseOutcome.CONFLICT)
    assert await read(lease) == other
    await lease.close()


async def test_endpoints_of_two_clusters_are_refused(
    one: EtcdCluster, tmp_path: Path, key: str
) -> None:
    with local_etcd(tmp_path / "other", 2) as other:
        other.wait_serving()
        lease = of((*one.endpoints, *other.endpoints), key)
        stored = await made(lease)
        one.kill()
        answer = await asked(lease)
        assert answer.outcome is LeaseOutcome.UNKNOWN
        assert "belongs to another etcd cluster" in answer.reason
        assert "`cluster.etcd_endpoints`" in answer.reason
        one.start_killed()
        assert await read_in_the_end(lease) == stored
        await lease.close()


async def test_an_etcd_without_space_says_what_to_do(tmp_path: Path, key: str) -> None:
    with local_etcd(tmp_path / "etcd", options=("--quota-backend-bytes", "100000")) as etcd:
        etcd.wait_serving()
        lease = of(etcd.endpoints, key)
        stored = await made(lease)
        answer = Outcome(LeaseOutcome.APPLIED, stored)
        async with asyncio.timeout(60):
            while answer.outcome is LeaseOutcome.APPLIED:
                assert answer.stored is not None
                stored = answer.stored
                renewed = stored.lease.renewed + 1
                answer = await lease.put(stored.lease._replace(renewed=renewed), stored)
        assert answer.outcome is LeaseOutcome.UNKNOWN
        assert answer.reason.endswith(
            "database space exceeded; compact and defragment it, then disarm its alarm NOSPACE"
        )
        # Unknown: the write that reached the limit was applied, or not.
        assert (await read(lease)).lease.renewed - stored.lease.renewed in (0, 1)
        await lease.close()


# -- authentication and TLS -----------------------------------------------------------------------


@pytest.fixture
def guarded(one: EtcdCluster) -> EtcdCluster:
    """An etcd with authentication: ``ha`` may use /tidemark/, ``guest`` nothing."""
    for user in ("root", "ha", "guest"):
        one.call("auth/user/add", {"name": user, "password": f"of {user}"})
    one.call("auth/role/add", {"name": "lease"})
    one.call(
        "auth/role/grant",
        {
            "name": "lease",
            "perm": {
                "permType": "READWRITE",
                "key": encoded("/tidemark/"),
                "range_end": encoded("/tidemark0"),
            },
        },
    )
    one.call("auth/user/grant", {"user": "root", "role": "root"})
    one.call("auth/user/grant", {"user": "ha", "role": "lease"})
    one.call("auth/enable", {})
    return one


def login(directory: Path, user: str, password: str) -> Login:
    path = directory / f"{user}-password"
    path.write_text(f"{password}\n")
    return Login(user, path)


@pytest.mark.parametrize(
    ("user", "password", "words"),
    [
        (
            "",
            "",
            "user name is empty; set `cluster.etcd_user` and `cluster.etcd_password_file`",
        ),
        (
            "ha",
            "wrong",
            "authentication failed, invalid user ID or password; correct `cluster.etcd_user`, or "
            "the password in `cluster.etcd_password_file`",
        ),
        (
            "guest",
            "of guest",
            "permission denied; grant the user a role that may read and write "
            "`cluster.etcd_prefix`",
        ),
    ],
)
async def test_a_user_who_may_not_is_told_what_to_correct(
    guarded: EtcdCluster, tmp_path: Path, key: str, user: str, password: str, words: str
) -> None:
    lease = of(guarded.endpoints, key, login(tmp_path, user, password) if user else None)
    for outcome in (await lease.get(), await lease.create(FREE)):
        assert outcome.outcome is LeaseOutcome.UNKNOWN
        assert outcome.reason.endswith(words)
    await lease.close()


async def test_a_token_that_a_restart_forgot_is_requested_again(
    guarded: EtcdCluster, tmp_path: Path, key: str
) -> None:
    lease = of(guarded.endpoints, key, login(tmp_path, "ha", "of ha"))
    stored = await made(lease)
    guarded.kill()
    guarded.start_killed()
    guarded.wait_serving()
    assert (await lease.put(FREE._replace(renewed=1), stored)).outcome is LeaseOutcome.APPLIED
    # A changed password counts from the next login on.
    path = tmp_path / "ha-password"
    path.write_text("wrong")
    assert (await lease.get()).outcome is LeaseOutcome.FOUND
    guarded.kill()
    guarded.start_killed()
    guarded.wait_serving()
    assert (await lease.get()).reason.startswith(f"etcd at {guarded.endpoints[0]} answered 400")
    path.unlink()
    assert (await lease.get()).reason == (
        f"`cluster.etcd_password_file` {path} cannot be read: No such file or directory"
    )
    await lease.close()


async def test_a_user_is_no_obstacle_while_authentication_is_off(
    shared_etcd: EtcdCluster, tmp_path: Path, key: str
) -> None:
    lease = of(shared_etcd.endpoints, key, login(tmp_path, "ha", "of ha"))
    assert await made(lease) == await read(lease)
    await lease.close()


async def test_tls_checks_the_server_and_shows_a_certificate(tmp_path: Path, key: str) -> None:
    server = certificates.make(tmp_path, "server", address="127.0.0.1")
    stranger = certificates.make(tmp_path, "stranger")
    options = (
        *("--cert-file", str(server.certificate), "--key-file", str(server.key)),
        *("--trusted-ca-file", str(server.authority), "--client-cert-auth"),
    )

    def over_tls(**files: Path) -> EtcdLease:
        config = ClusterConfig(lease="etcd", etcd_endpoints=etcd.endpoints, **files)  # type: ignore[arg-type]
        gateway = EtcdGateway(etcd.endpoints, timeout_ms=TIMEOUT_MS, tls=etcd_tls(config))
        return EtcdLease(gateway, key)

    client = {"etcd_tls_cert_file": server.certificate, "etcd_tls_key_file": server.key}
    with local_etcd(tmp_path / "etcd", scheme="https", options=options) as etcd:
        good = over_tls(etcd_tls_ca_file=server.authority, **client)
        async with asyncio.timeout(60):
            while (await good.get()).outcome is not LeaseOutcome.ABSENT:
                pass  # it starts
        assert await made(good) == await read(good)
        wrong_ca = over_tls(etcd_tls_ca_file=stranger.authority, **client)
        reason = (await wrong_ca.get()).reason
        assert "its certificate is not accepted (unable to get local issuer" in reason
        assert reason.endswith("set `cluster.etcd_tls_ca_file` to the authority that signed it")
        no_certificate = over_tls(etcd_tls_ca_file=server.authority)
        assert re.fullmatch(
            # The alert depends on the version of etcd.
            rf"etcd at {etcd.endpoints[0]}: TLS failed \(\w+\); it may require "
            "`cluster.etcd_tls_cert_file` and `etcd_tls_key_file`",
            (await no_certificate.get()).reason,
        )
        plain = of(tuple(each.replace("https", "http") for each in etcd.endpoints), key)
        assert (await plain.get()).outcome is LeaseOutcome.UNKNOWN
        for lease in (good, wrong_ca, no_certificate, plain):
            await lease.close()


# -- all at once ----------------------------------------------------------------------------------


async def test_sessions_agree_on_every_epoch_while_members_are_killed_and_paused(
    three: EtcdCluster, key: str
) -> None:
    rules = LOCAL._replace(renew_ms=20, request_timeout_ms=300)
    campaigns = Campaigns(rules, seed=1)
    first = of(three.endpoints, key)
    await made(first)
    await first.close()
    owns = [HOLDER._replace(node=name, process=f"000000000000000{name}") for name in "abc"]
    tasks = [
        asyncio.create_task(
            # Each begins at another member.
            campaigns.run(of(three.endpoints[at:] + three.endpoints[:at], key), own)
        )
        for at, own in enumerate(owns)
    ]
    names = itertools.cycle(three.members)
    async with asyncio.timeout(120):
        for turn, name in enumerate(names):
            if turn % 2:
                three.pause(name)
            else:
                three.kill(name)
            await asyncio.sleep(0.7)
            if turn % 2:
                three.resume(name)
            else:
                three.start(name)
            await campaigns.more(3)
            if turn >= 5 and len(set(campaigns.holders.values())) == 3:
                break
    campaigns.stop.set()
    sessions = await asyncio.wait_for(asyncio.gather(*tasks), 120)
    assert all(session.unsettled is None for session in sessions)
