"""``tidemark cluster rotate-secret``: replaces the secret of a running group, link by link.

All nodes take a step before the next one begins (``shared/cluster/group_secret.py``). A step is
sent to the ha of a node, sealed with the present secret. Where ha cannot replace its files, as in a
Kubernetes Secret, the command says what to change, and waits until the node's status shows it. The
command may be interrupted and repeated at any point: it continues from what the nodes show.
"""

from __future__ import annotations

import asyncio
import base64
import secrets
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from shared.cluster.group_secret import (
    SEAL_NONCE_SIZE,
    SECRET_SIZE_MAX,
    SECRET_SIZE_MIN,
    Fingerprints,
    Recipient,
    RotationStep,
    fingerprint,
    seal,
)
from tidemark.cli.cluster_calls import ClusterCalls
from tidemark.cli.output import say
from tidemark.errors import ClusterRefused, TidemarkError

POLL_S: Final = 0.5
LACKS: Final = {
    RotationStep.ACCEPT: "does not accept the new secret yet",
    RotationStep.PROVE: "does not prove the new secret yet",
    RotationStep.FORGET: "still accepts the old secret",
}
DONE: Final = {
    RotationStep.ACCEPT: "1 of 3: every node accepts the new secret as well",
    RotationStep.PROVE: "2 of 3: every node proves the new secret",
    RotationStep.FORGET: "3 of 3: no node accepts the old secret",
}
BY_HAND: Final = {
    RotationStep.ACCEPT: "write the new secret to {file}.also (in a Kubernetes Secret: a key of "
    "that name beside the present one)",
    RotationStep.PROVE: "move the old secret to {file}.also and write the new one to {file}, in "
    "one change",
    RotationStep.FORGET: "remove {file}.also",
}
SHARED: Final = (
    "name services: {names}. If registrations are signed with this secret too (names.secret_file), "
    "restart them and all brokers together afterwards, with the new secret: they read it at their "
    "start."
)


class SecretsDiffer(ClusterRefused):
    """Not all nodes have taken a step in time."""

    code, title = "secrets-differ", "Not every node has taken the step"


class NodeSecrets(NamedTuple):
    """What a node's own status shows of its secrets."""

    node: str
    seen: Fingerprints | None
    """None: the node does not answer, or has not read its secrets yet."""
    file: str = ""
    writable: bool = False
    challenge: str = ""
    reason: str = ""

    def has_done(self, step: RotationStep, new: str) -> bool:
        """Return whether the node is known to have taken a step. new: fingerprint."""
        return self.seen is not None and self.seen.has_done(step, new)


def read_secret_file(path: Path) -> bytes:
    """Return a secret without white space around it. Raises ClusterRefused."""
    try:
        secret = path.read_bytes().strip()
    except OSError as error:
        raise ClusterRefused(
            f"{path} cannot be read: {error.strerror}. Nothing was changed."
        ) from error
    if not SECRET_SIZE_MIN <= len(secret) <= SECRET_SIZE_MAX:
        raise ClusterRefused(
            f"{path} holds {len(secret)} bytes; {SECRET_SIZE_MIN} to {SECRET_SIZE_MAX} are a "
            "secret. Nothing was changed.",
            f"Make one with `umask 077; openssl rand -hex 32 > {path}`.",
        )
    return secret


class Rotation:
    """One run of the command."""

    def __init__(
        self, calls: ClusterCalls, new: bytes, secret_file: Path | None, *, timeout_s: float
    ) -> None:
        """secret_file: the present secret, for the seals; None: every change is made by hand.
        timeout_s: limit of one step.
        """
        self._calls, self._new, self._secret_file = calls, new, secret_file
        self._timeout_s = timeout_s
        self._told: set[tuple[RotationStep, str]] = set()
        self._cluster = self._group = ""
        self._mark = ""
        """Fingerprint of the new secret."""

    async def run(self) -> list[NodeSecrets]:
        """Take all steps and return the nodes. Raises SecretsDiffer, ClusterRefused and others."""
        await self._check()
        if names := await self._calls.name_services():
            say(SHARED.format(names=", ".join(names)))
        for step in RotationStep:
            await self._everywhere(step)
            say(DONE[step])
        return await self.nodes()

    async def nodes(self) -> list[NodeSecrets]:
        """Return what every node shows of its secrets."""
        view = await self._calls.view()
        self._cluster, self._group = view["cluster"], view["group"]
        asked = [self._node(node["node"], node["admin"]) for node in view["nodes"]]
        return list(await asyncio.gather(*asked))

    async def _node(self, name: str, admin: str) -> NodeSecrets:
        try:
            status = await self._calls.own_view(admin)
        except TidemarkError as error:
            return NodeSecrets(name, None, reason=error.detail)
        found = status.get("secret")
        if not found or found["proves"] is None:
            why = "its ha does not know this command" if found is None else "it is starting"
            return NodeSecrets(name, None, reason=why)
        if found.get("node") != name:
            return NodeSecrets(name, None, reason=f"{admin} leads to {found.get('node')}")
        seen = Fingerprints(found["proves"], tuple(found["accepts"]))
        return NodeSecrets(name, seen, found["file"], found["writable"], found["challenge"])

    async def _check(self) -> None:
        """Refuse a new secret that the status could not tell from the present one."""
        nodes = await self.nodes()
        self._mark = fingerprint(self._new, self._cluster, self._group)
        if self._secret_file is not None:
            present = read_secret_file(self._secret_file)
            alike = fingerprint(present, self._cluster, self._group) == self._mark
            if alike and present != self._new:
                raise ClusterRefused(
                    "the new secret has the fingerprint of the present one. Nothing was changed.",
                    "Make another one.",
                )
        for node in nodes:
            seen = node.seen
            if seen and len(seen.accepts) > 1 and self._mark not in seen.accepts:
                raise ClusterRefused(
                    f"{node.node} accepts two secrets, {' and '.join(seen.accepts)}, and the new "
                    f"one is {self._mark}: another rotation is unfinished. Nothing was changed.",
                    "Finish it with its own new secret, or remove the file .also on every node if "
                    "no node proves that secret.",
                )

    async def _everywhere(self, step: RotationStep) -> None:
        """Return when every node has taken a step."""
        ends_at = time.monotonic() + self._timeout_s
        while lacking := [n for n in await self.nodes() if not n.has_done(step, self._mark)]:
            if time.monotonic() > ends_at:
                raise self._differ(step, lacking)
            for node in lacking:
                if node.seen is not None and node.writable and self._secret_file is not None:
                    await self._send(step, node, node.seen, self._secret_file)
                else:
                    self._tell(step, node)
            await asyncio.sleep(POLL_S)

    async def _send(
        self, step: RotationStep, node: NodeSecrets, seen: Fingerprints, secret_file: Path
    ) -> None:
        """Send a step to a node. Raises Refusal, Unreachable."""
        recipient = Recipient(self._cluster, self._group, node.node, node.challenge)
        key = await asyncio.to_thread(read_secret_file, secret_file)
        nonce = secrets.token_bytes(SEAL_NONCE_SIZE)
        sealed = seal(self._new, key, step, recipient, seen, nonce)
        order = {"step": step.value, "sealed": base64.b64encode(sealed).decode()}
        await self._calls.at_port(node.node, "rotate-secret", order)

    def _tell(self, step: RotationStep, node: NodeSecrets) -> None:
        """Say once what to do on a node, or why it is waited for."""
        if (step, node.node) in self._told:
            return
        self._told.add((step, node.node))
        if node.seen is None:
            say(f"{node.node}: waiting, {node.reason}")
        else:
            say(f"{node.node}: {BY_HAND[step].format(file=node.file)}")

    def _differ(self, step: RotationStep, lacking: Sequence[NodeSecrets]) -> SecretsDiffer:
        nodes = "; ".join(
            f"{node.node} {LACKS[step]}" + (f" ({node.reason})" if node.reason else "")
            for node in lacking
        )
        return SecretsDiffer(
            f"after {self._timeout_s:g} s: {nodes}. Every node accepts what the others prove.",
            "Repeat the command: it continues with this step.",
        )
