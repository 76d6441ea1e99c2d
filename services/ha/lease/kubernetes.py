"""The lease as a Kubernetes ``Lease``, written by compare-and-set on its resource version.

Lock, epoch and in-sync set are one object: the holder in ``spec.holderIdentity``, the rest in
annotations (``texts``). Times in it are for people and are never compared with a clock.

- A read carries no resource version, so that the API server reads its store and not its cache.
- A write is the whole object as it was read, with foreign fields kept, with its resource version
  *and* its uid: Kubernetes creates a Lease on a PUT to a missing one, and the uid keeps a late PUT
  from reviving a deleted one.
- An answer that does not clearly mean applied, refused or absent is *unknown*.
- The token of the service account is read from its file for every request, because it changes.
"""

from __future__ import annotations

import asyncio
import copy
import datetime
import json
import os
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import aiohttp
from kubernetes_asyncio import client as kubernetes_client

from services.ha.core.events import LeaseOutcome
from services.ha.lease.interface import Outcome
from services.ha.lease.texts import TEXT_NAMES, UnreadableLease, holder_text, lease_of, texts_of
from services.ha.lease.value import Lease, Stored
from shared.runtime import connection_errors

ACCOUNT_DIR: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
KEPT: Final = 4
"""Objects as they were read, by version: a write needs the one that it replaces."""
TRANSITIONS_MAX: Final = (1 << 31) - 1
MESSAGE_SIZE_MAX: Final = 200
"""Maximum number of characters of a server's message that a reason quotes."""


class KubernetesLease:
    """``LeaseStore`` over the API server."""

    def __init__(
        self,
        name: str,
        *,
        namespace: str,
        url: str,
        pod: str,
        lease_ms: int,
        timeout_ms: int,
        account_dir: Path = ACCOUNT_DIR,
        now: Callable[[], datetime.datetime] = lambda: datetime.datetime.now(datetime.UTC),
    ) -> None:
        """Connect with the first request. Raises ValueError if there is no API server.

        url, namespace: if empty, those of the pod in which this process runs. pod: name of this
        node's pod. timeout_ms: limit of one request with its connection. account_dir: holds token,
        ca.crt and namespace.
        """
        self._name, self._pod = name, pod
        self._account_dir = account_dir
        self._namespace = namespace or _text(account_dir / "namespace") or "default"
        self._lease_seconds = -(-lease_ms // 1000)
        self._timeout_s = timeout_ms / 1000
        self._now = now
        self._read: OrderedDict[str, dict[str, Any]] = OrderedDict()
        self._url = url or _pod_url(os.environ)
        self._client: Any = None
        """Made with the first request: its connections belong to a running event loop."""

    async def get(self) -> Outcome:
        """Read the object from the API server's store."""
        return await self._call(
            lambda **options: self._leases().read_namespaced_lease(
                self._name, self._namespace, **options
            ),
            {200: LeaseOutcome.FOUND, 404: LeaseOutcome.ABSENT},
        )

    async def put(self, lease: Lease, base: Stored) -> Outcome:
        """Replace the object if it still has that version."""
        found = self._read.get(base.version)
        if found is None or found["metadata"]["uid"] != base.uid:
            # It was read too long ago: the caller reads again, as after a write of another process.
            return Outcome(LeaseOutcome.CONFLICT)
        body = self._body(lease, found)
        # 201 would mean a new object in place of a deleted one; no server creates one with a uid.
        return await self._call(
            lambda **options: self._leases().replace_namespaced_lease(
                self._name, self._namespace, body, **options
            ),
            {200: LeaseOutcome.APPLIED, 404: LeaseOutcome.ABSENT, 409: LeaseOutcome.CONFLICT},
        )

    async def create(self, lease: Lease) -> Outcome:
        """Create the object, if there is none."""
        body = self._body(lease, {"metadata": {"name": self._name, "namespace": self._namespace}})
        return await self._call(
            lambda **options: self._leases().create_namespaced_lease(
                self._namespace, body, **options
            ),
            {200: LeaseOutcome.APPLIED, 201: LeaseOutcome.APPLIED, 409: LeaseOutcome.CONFLICT},
        )

    async def announce(self, role: str) -> str:
        """Label this node's pod ``role=…``; return the reason of a failure, empty on success."""
        body = {"metadata": {"labels": {"role": role}}}
        try:
            status, answer = await self._ask(
                lambda **options: kubernetes_client.CoreV1Api(
                    self._connected()
                ).patch_namespaced_pod(
                    self._pod,
                    self._namespace,
                    body,
                    **options,
                )
            )
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            return _said(error)
        return "" if status == 200 else _refusal(status, answer)

    async def close(self) -> None:
        """Close the connections."""
        if self._client is not None:
            await self._client.close()

    def _leases(self) -> kubernetes_client.CoordinationV1Api:
        return kubernetes_client.CoordinationV1Api(self._connected())

    def _connected(self) -> Any:
        """Return the client, with its pool of connections and the present token."""
        if self._client is None:
            certificate = self._account_dir / "ca.crt"
            configuration = kubernetes_client.Configuration(
                host=self._url, ssl_ca_cert=str(certificate) if certificate.exists() else None
            )
            self._client = kubernetes_client.ApiClient(configuration)
            self._client.user_agent = f"tidemark-ha/{self._pod}"
        token = _text(self._account_dir / "token")
        if token:
            self._client.set_default_header("Authorization", f"Bearer {token}")
        return self._client

    def _body(self, lease: Lease, found: dict[str, Any]) -> Any:
        """Return the whole object with the lease, and all other fields of found."""
        body = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            **copy.deepcopy(found),
        }
        annotations = body["metadata"].get("annotations") or {}
        body["metadata"]["annotations"] = {
            name: text for name, text in annotations.items() if name not in TEXT_NAMES
        } | texts_of(lease)
        before = found.get("spec") or {}
        now = self._now().strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        holder = holder_text(lease.holder)
        spec = {
            **before,
            "holderIdentity": holder,
            "leaseDurationSeconds": self._lease_seconds,
            "renewTime": now,
        }
        if holder != (before.get("holderIdentity") or ""):
            transitions = int(before.get("leaseTransitions") or 0)
            spec["acquireTime"] = now
            spec["leaseTransitions"] = min(transitions + 1, TRANSITIONS_MAX)
        body["spec"] = spec
        return body

    async def _call(
        self, call: Callable[..., Awaitable[Any]], meaning: dict[int, LeaseOutcome]
    ) -> Outcome:
        try:
            status, answer = await self._ask(call)
            outcome = meaning.get(status, LeaseOutcome.UNKNOWN)
            if outcome is LeaseOutcome.ABSENT and not self._is_missing(answer):
                outcome = LeaseOutcome.UNKNOWN
            match outcome:
                case LeaseOutcome.FOUND | LeaseOutcome.APPLIED:
                    return Outcome(outcome, self._taken(answer))
                case LeaseOutcome.UNKNOWN:
                    return Outcome(outcome, reason=_refusal(status, answer))
            return Outcome(outcome)
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            return Outcome(LeaseOutcome.UNKNOWN, reason=_said(error))

    async def _ask(self, call: Callable[..., Awaitable[Any]]) -> tuple[int, Any]:
        """Return HTTP status and JSON body unchanged: a model would drop unknown fields."""
        response = await call(_preload_content=False, _request_timeout=self._timeout_s)
        async with response:
            text = await response.text()
        try:
            return response.status, json.loads(text)
        except (ValueError, RecursionError):
            return response.status, text

    def _is_missing(self, answer: Any) -> bool:
        """Return whether a 404 is about the object, and not from a server without such a path."""
        return (
            isinstance(answer, dict)
            and answer.get("reason") == "NotFound"
            and (answer.get("details") or {}).get("name") == self._name
        )

    def _taken(self, answer: Any) -> Stored:
        """Return the lease of an object, and keep the object for the next write. Raises
        UnreadableLease."""
        if not isinstance(answer, dict) or not isinstance(answer.get("metadata"), dict):
            raise UnreadableLease("the API server's answer is not an object")
        metadata, spec = answer["metadata"], answer.get("spec") or {}
        version, uid = metadata.get("resourceVersion"), metadata.get("uid")
        if not version or not uid:
            raise UnreadableLease("the object has no resource version or no uid")
        lease = lease_of(spec.get("holderIdentity") or "", metadata.get("annotations") or {})
        self._read[version] = answer
        if len(self._read) > KEPT:
            self._read.popitem(last=False)
        return Stored(lease, version, uid)


def _pod_url(environment: Any) -> str:
    """Return the address of the API server in a pod. Raises ValueError outside of one."""
    host = environment.get("KUBERNETES_SERVICE_HOST")
    port = environment.get("KUBERNETES_SERVICE_PORT")
    if not host or not port:
        raise ValueError(
            "cluster.kubernetes_url is empty, and this is not a pod: KUBERNETES_SERVICE_HOST and "
            "KUBERNETES_SERVICE_PORT are not set"
        )
    return f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"


def _text(path: Path) -> str:
    """Return a small file's text; empty if it does not exist."""
    try:
        return path.read_text().strip()
    except FileNotFoundError:
        return ""


def _refusal(status: int, answer: Any) -> str:
    message = answer
    if isinstance(answer, dict):
        message = answer.get("message") or answer.get("reason") or "without a message"
    return f"the API server answered {status}: {str(message)[:MESSAGE_SIZE_MAX]}"


def _said(error: Exception) -> str:
    if isinstance(error, asyncio.TimeoutError):
        return "no answer in time"
    match error:
        case aiohttp.ClientConnectorCertificateError():
            return f"the API server at {error.host}:{error.port}: its certificate is not accepted"
        case aiohttp.ClientConnectorError():
            where = f"the API server at {error.host}:{error.port}"
            return f"{where} is not reached: {connection_errors.describe(error.os_error)}"
        case aiohttp.ServerDisconnectedError():
            return "the API server closed the connection without an answer"
        case OSError() | UnreadableLease():
            return f"the API server: {connection_errors.describe(error)}"[:MESSAGE_SIZE_MAX]
        case _:
            return "the API server's answer is not HTTP, or not that of a Kubernetes API"
