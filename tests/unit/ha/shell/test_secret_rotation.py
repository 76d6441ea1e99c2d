"""The secrets of a running node: watched, replaced by sealed orders, and shown by fingerprints."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from services.ha.shell import secret_rotation
from services.ha.shell.links import Credentials
from services.ha.shell.secret_files import SecretFiles
from services.ha.shell.secret_rotation import SecretRotation
from shared.cluster.group_secret import (
    Fingerprints,
    Recipient,
    RotationStep,
    Secrets,
    fingerprint,
    seal,
)
from tests.support.still_clock import until
from tidemark.errors import BadConfig

OLD, NEW, THIRD = b"the old secret 16", b"the new secret 16", b"a third secret 16"
N1 = Recipient("tidemark", "g0", "n1")
ACCEPT, PROVE, FORGET = RotationStep


def mark(secret: bytes) -> str:
    return fingerprint(secret, N1.cluster, N1.group)


class WatchedNode:
    """The rotation of one node, watching its files."""

    def __init__(self, client: TestClient[Any, Any], files: SecretFiles, secrets: Credentials):
        self.files, self.credentials, self._client = files, secrets, client
        self.status: Callable[[], Mapping[str, Any]] = dict

    async def order(
        self,
        step: RotationStep,
        new: bytes = NEW,
        key: bytes = OLD,
        seen: Fingerprints | None = None,
    ) -> tuple[int, dict[str, Any]]:
        if seen is None:
            accepted = self.credentials.secrets.accepted
            seen = Fingerprints(mark(accepted[0]), tuple(map(mark, accepted)))
        own = N1._replace(challenge=self.status()["challenge"])
        sealed = seal(new, key, step, own, seen, bytes(32))
        return await self.send(step.value, base64.b64encode(sealed).decode())

    async def send(self, step: str, sealed: str) -> tuple[int, dict[str, Any]]:
        body = {"step": step, "sealed": sealed}
        async with self._client.post("/v1/cluster/rotate-secret", json=body) as answer:
            return answer.status, await answer.json()


@asynccontextmanager
async def watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[WatchedNode]:
    monkeypatch.setattr(secret_rotation, "WATCH_S", 0.01)
    files = SecretFiles(tmp_path / "secret")
    files.path.write_bytes(OLD)
    files.path.chmod(0o600)
    credentials = Credentials(files.read(), None)
    rotation = SecretRotation(files, credentials, N1)
    app = web.Application()
    app.add_routes(rotation.routes())
    stop = asyncio.Event()
    async with TestClient(TestServer(app)) as client:
        watching = asyncio.create_task(rotation.watch(stop))
        await until(lambda: rotation.status()["proves"] is not None)
        node = WatchedNode(client, files, credentials)
        node.status = rotation.status
        yield node
        stop.set()
        await watching


async def test_three_sealed_orders_replace_the_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with watched(tmp_path, monkeypatch) as node:
        for step, secrets in (
            (ACCEPT, Secrets(OLD, (OLD, NEW))),
            (PROVE, Secrets(NEW, (NEW, OLD))),
            (FORGET, Secrets(NEW, (NEW,))),
        ):
            status, body = await node.order(step)
            assert (status, body["changed"]) == (200, True), body
            assert node.credentials.secrets == secrets
            assert body["secret"] == {
                "node": "n1",
                "challenge": node.status()["challenge"],
                "proves": mark(secrets.proved),
                "accepts": list(map(mark, secrets.accepted)),
                "file": str(node.files.path),
                "writable": True,
            }
            key = secrets.accepted[-1]  # until the last step the node knows the old secret, too
            assert (await node.order(step, key=key))[1]["changed"] is False
    assert not node.files.also.exists()


async def test_files_changed_by_hand_are_used_and_bad_ones_are_ignored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with watched(tmp_path, monkeypatch) as node:
        node.files.also.write_bytes(NEW)
        await until(lambda: node.credentials.secrets == Secrets(OLD, (OLD, NEW)))
        node.files.path.write_bytes(b"too short")
        await until(lambda: "secret-ignored" in [r.__dict__.get("event") for r in caplog.records])
        assert node.credentials.secrets == Secrets(OLD, (OLD, NEW))
        node.files.path.write_bytes(NEW)
        await until(lambda: node.credentials.secrets == Secrets(NEW, (NEW,)))
    ignored = [r for r in caplog.records if r.__dict__.get("event") == "secret-ignored"]
    assert len(ignored) == 1, "once per change, not once a second"
    assert not [r for r in caplog.records if OLD.decode() in r.getMessage()]


async def test_an_order_that_is_not_sealed_for_this_state_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with watched(tmp_path, monkeypatch) as node:
        before = node.files.stamps()
        for status, code, sent in (
            (403, "bad-seal", node.order(ACCEPT, key=THIRD)),
            (403, "bad-seal", node.order(ACCEPT, seen=Fingerprints("0000", ("0000",)))),
            (403, "bad-seal", node.send("accept", "")),
            (400, "bad-request", node.send("accept", "not base64")),
            (400, "bad-request", node.send("explode", "")),
            (400, "bad-request", node.order(ACCEPT, new=b"short")),
            (400, "bad-request", node.order(ACCEPT, new=NEW + b"\n")),
            (409, "rotation-unfinished", node.order(PROVE)),
            (409, "rotation-unfinished", node.order(FORGET)),
        ):
            answer = await sent
            assert (answer[0], answer[1]["code"]) == (status, code)
        assert node.files.stamps() == before


async def test_files_that_ha_cannot_replace_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read_only(*_: object) -> None:
        raise OSError(30, "Read-only file system")

    async with watched(tmp_path, monkeypatch) as node:
        monkeypatch.setattr(node.files, "write", read_only)
        status, body = await node.order(ACCEPT)
        assert (status, body["code"]) == (409, "secret-not-writable")
        assert "Read-only" in body["detail"]
        assert node.credentials.secrets == Secrets(OLD, (OLD,))


async def test_files_that_become_readable_are_read_although_they_were_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def denied() -> Secrets:
        tries.append("secret.also")
        raise BadConfig("secret.also cannot be read: Permission denied.")

    def events(name: str) -> int:
        return sum(record.__dict__.get("event") == name for record in caplog.records)

    tries: list[str] = []
    async with watched(tmp_path, monkeypatch) as node:
        with monkeypatch.context() as patched:
            patched.setattr(node.files, "read", denied)
            node.files.also.write_bytes(NEW)
            await until(lambda: len(tries) > 2)
            assert events("secret-ignored") == 1, "once per reason, not once a second"
        await until(lambda: node.credentials.secrets == Secrets(OLD, (OLD, NEW)))


def test_a_file_that_others_may_read_is_reported_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = SecretFiles(tmp_path / "secret")
    files.path.write_bytes(OLD)
    files.path.chmod(0o644)
    for _ in range(3):
        files.read()
    events = [record.__dict__.get("event") for record in caplog.records]
    assert events == ["secret-readable"]


async def test_an_order_that_was_recorded_is_not_taken_again_after_the_rotation_was_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with watched(tmp_path, monkeypatch) as node:
        own = N1._replace(challenge=node.status()["challenge"])
        before = Fingerprints(mark(OLD), (mark(OLD),))
        recorded = base64.b64encode(seal(NEW, OLD, ACCEPT, own, before, bytes(32))).decode()
        assert (await node.send("accept", recorded))[1]["changed"] is True
        node.files.also.unlink()
        await until(lambda: node.status()["accepts"] == [mark(OLD)])
        assert (await node.send("accept", recorded))[0] == 403
        assert node.credentials.secrets == Secrets(OLD, (OLD,))
