"""The lease in Kubernetes: the product's own store over an API server and a lossy network.

Requests are built and answers are understood by ``services.ha.lease.kubernetes``. Simulated is the
client library, below which bodies are JSON texts. A request or its answer can be lost, replaced by
an error of a proxy, or applied after its sender gave up or died.
"""

from __future__ import annotations

import asyncio
import datetime
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from unittest.mock import patch

import aiohttp

from drills.lease_objects import Answer, LeaseObjects
from services.ha.lease import kubernetes
from services.ha.lease.value import Lease, Stored
from tests.simulation.replication.lease_object import LeaseObject, is_change
from tests.simulation.replication.plan import TIMES
from tests.simulation.replication.timeline import Timeline
from tests.simulation.replication.violation import Violation

if TYPE_CHECKING:
    from tests.simulation.replication.ha import Ha

NAMESPACE: Final = "shop"
EPOCH: Final = datetime.datetime(2030, 1, 1, tzinfo=datetime.UTC)
FOREIGN: Final = "example.com/"
"""Fields of other tools."""


class Response(NamedTuple):
    """An HTTP response of the client library, before its body is read."""

    status: int
    body: str

    async def __aenter__(self) -> Response:
        return self

    async def __aexit__(self, *_: object) -> None:
        return None

    async def text(self) -> str:
        """Return the body."""
        return self.body


Reply = Response | Exception
PROXY: Final = (
    Response(503, '{"kind": "Status", "code": 503, "message": "apiserver not ready"}'),
    Response(404, "404 page not found"),
    Response(404, '{"kind": "Status", "reason": "NotFound", "details": {"name": "namespace"}}'),
    Response(429, "too many requests"),
)
"""Answers to requests that did not reach the store."""
BROKEN: Final = (
    Response(504, '{"kind": "Status", "code": 504, "message": "etcdserver: request timed out"}'),
    Response(500, "internal error"),
    Response(200, '{"kind": "Lease", "metad'),
    Response(200, '{"kind": "Lease"}'),
    aiohttp.ServerDisconnectedError(),
)
"""Answers in place of the one that was lost."""


class LeaseApi(LeaseObject):
    """The API server and the network to it."""

    def __init__(
        self, timeline: Timeline, applied: Callable[[Stored | None, Stored | None], None]
    ) -> None:
        super().__init__(timeline, applied)
        self._objects = LeaseObjects(lambda: f"{timeline.random.getrandbits(64):016x}")
        self._starts: dict[str, Ha] = {}
        """The last start of ha of each node."""
        self._bodies: dict[int, dict[str, Any]] = {}
        """What was written, by ``renewed``."""
        self._touches = 0

    def store_of(self, ha: Ha) -> kubernetes.KubernetesLease:
        """Return the store of one start of ha."""
        self._starts[ha.node] = ha
        return kubernetes.KubernetesLease(
            self.name,
            namespace=NAMESPACE,
            url=ha.node,
            pod=ha.node,
            lease_ms=TIMES.lease_ms,
            timeout_ms=TIMES.request_timeout_ms,
            now=self._wall_time,
        )

    @contextmanager
    def simulated(self) -> Iterator[None]:
        """Replace the client library."""
        library = SimpleNamespace(
            Configuration=SimpleNamespace,
            ApiClient=_ApiClient,
            CoordinationV1Api=lambda client: _Leases(self, self._starts[client.node]),
            CoreV1Api=lambda client: _Pods(self, self._starts[client.node]),
        )
        with patch.object(kubernetes, "kubernetes_client", library):
            yield

    def delete(self) -> None:
        """Delete the object."""
        if self._objects.delete(NAMESPACE, self.name).status == 200:
            self._becomes(None)

    def touch(self) -> None:
        """Change an annotation and a label of another tool."""
        found = self._objects.get(NAMESPACE, self.name)
        if found.status == 200 and self.stored is not None:
            self._touches += 1
            metadata = found.body["metadata"]
            metadata["annotations"][f"{FOREIGN}note"] = str(self._touches)
            metadata.setdefault("labels", {})[f"{FOREIGN}owner"] = str(self._touches)
            self._write(found.body)
            now = self._now
            assert now is not None
            before, self.stored = self.stored, now
            self._versions[now.uid, now.version] = now
            self._replaced_us[before.uid, before.version] = self._timeline.now_us

    def replace(self, lease: Lease) -> None:
        """Give the object the holder and the annotations that it had with that lease."""
        found = self._objects.get(NAMESPACE, self.name)
        if found.status == 200:
            earlier = self._bodies[lease.renewed]
            body = found.body
            body["metadata"]["annotations"] = earlier["metadata"]["annotations"]
            body["spec"] = earlier["spec"]
            self._write(body)
            self._becomes(self._now)

    async def ask(
        self,
        ha: Ha,
        perform: Callable[[], Answer],
        options: dict[str, Any],
        *,
        body: dict[str, Any] | None = None,
    ) -> Response:
        """Send a request of ha; return its response. body: set if it writes the lease.

        Raises what the client library does. Without an answer it waits until its time is over.
        """
        timeline, random, weather = self._timeline, self._timeline.random, self.weather
        assert options["_preload_content"] is False, "the body is read as it is"
        answered: asyncio.Future[Reply] = ha.loop.create_future()
        renewed = -1 if body is None else int(body["metadata"]["annotations"]["renewed"])

        def settle(reply: Reply) -> None:
            if not answered.done():
                answered.set_result(reply)

        def reply_later(reply: Reply | None) -> None:
            if reply is not None and ha.process.alive:
                ha.loop.call_soon_threadsafe(settle, reply)

        def arrive() -> None:
            self._flying.pop(renewed, None)
            if ha.node in self.unreachable:
                reply_later(self._random.choice((None, None, *PROXY)))
                return
            fate = self._fate_of(ha.node, is_write=body is not None)
            if fate is not None:
                if fate.is_applied:
                    perform()
                reply_later(self._random.choice(BROKEN if fate.is_applied else PROXY))
                return
            if body is not None and random.random() < weather.refused:
                answer = Answer(409, {"kind": "Status", "message": "try again"})
            else:
                before = self.stored
                answer = perform()
                if is_change(before, self.stored) and self._fails():
                    reply_later(self._random.choice(BROKEN))
                    return
            if ha.node in self.deaf or random.random() < weather.answer_lost:
                reply_later(self._random.choice((None, None, *BROKEN)))
                return
            response = Response(answer.status, json.dumps(answer.body))
            timeline.after(self._delay_us(), lambda: reply_later(response))

        delay_us = self._delay_us()
        if random.random() < weather.late:
            delay_us += TIMES.request_timeout_ms * 1000 + random.randint(0, 4_000_000)
        if renewed in self._late:
            delay_us = TIMES.request_timeout_ms * 1000 + random.randint(0, 500_000)
        if random.random() >= weather.lost:
            timeline.after(delay_us, arrive)
        else:
            self._flying.pop(renewed, None)
            timeline.after(delay_us, lambda: reply_later(self._random.choice((None, *PROXY))))
        async with asyncio.timeout(options["_request_timeout"]):
            reply = await answered
        if isinstance(reply, Exception):
            raise reply
        return reply

    def get(self) -> Answer:
        """Read the object."""
        return self._objects.get(NAMESPACE, self.name)

    def put(self, text: str) -> Answer:
        """Replace the object."""
        body, before = json.loads(text), self._objects.get(NAMESPACE, self.name)
        answer = self._write(body)
        if answer.status == 200:
            _check_fields(before.body, answer.body, self._wall_time())
            self._bodies[_renewed(body)] = answer.body
            self._becomes(self._now)
        elif answer.status == 201:
            raise Violation(f"a write of a lease that was deleted creates another: {body}")
        return answer

    def post(self, text: str) -> Answer:
        """Create the object; a controller adds fields of its own."""
        body = json.loads(text)
        body["metadata"]["annotations"][f"{FOREIGN}note"] = "0"
        answer = self._objects.post(NAMESPACE, body)
        if answer.status == 201:
            self._bodies[_renewed(body)] = answer.body
            self._becomes(self._now)
        return answer

    def shown_role(self, node: str) -> str | None:
        """Role that the pod of a node shows."""
        return self._objects.labels(NAMESPACE, node).get("role", "none")

    def patch_pod(self, node: str, body: dict[str, Any]) -> Answer:
        """Change the labels of a pod."""
        return self._objects.patch_pod(NAMESPACE, node, body)

    def _write(self, body: dict[str, Any]) -> Answer:
        for _ in range(self._random.randint(0, 2)):  # Other objects share the counter.
            self._objects.patch_pod(NAMESPACE, "another", {})
        return self._objects.put(NAMESPACE, self.name, body)

    @property
    def _now(self) -> Stored | None:
        """The object, with the lease that the last write wanted."""
        answer = self._objects.get(NAMESPACE, self.name)
        if answer.status != 200:
            return None
        metadata = answer.body["metadata"]
        lease = self._wanted[_renewed(answer.body)]
        return Stored(lease, metadata["resourceVersion"], metadata["uid"])

    def _wall_time(self) -> datetime.datetime:
        return EPOCH + datetime.timedelta(microseconds=self._timeline.now_us)


class _ApiClient:
    """Connections of one start of ha."""

    def __init__(self, configuration: Any) -> None:
        self.node, self.user_agent = configuration.host, ""

    def set_default_header(self, name: str, value: str) -> None:
        """Do nothing: any token is accepted."""

    async def close(self) -> None:
        """Do nothing: there is no connection."""


class _Leases:
    """``CoordinationV1Api``."""

    def __init__(self, api: LeaseApi, ha: Ha) -> None:
        self._api, self._ha = api, ha

    async def read_namespaced_lease(self, name: str, space: str, **options: Any) -> Response:
        """GET."""
        assert (name, space) == (self._api.name, NAMESPACE)
        return await self._api.ask(self._ha, self._api.get, options)

    async def replace_namespaced_lease(
        self, name: str, space: str, body: dict[str, Any], **options: Any
    ) -> Response:
        """PUT."""
        assert (name, space) == (self._api.name, NAMESPACE)
        text = json.dumps(body)
        return await self._api.ask(self._ha, lambda: self._api.put(text), options, body=body)

    async def create_namespaced_lease(
        self, space: str, body: dict[str, Any], **options: Any
    ) -> Response:
        """POST."""
        assert (body["metadata"]["name"], space) == (self._api.name, NAMESPACE)
        text = json.dumps(body)
        return await self._api.ask(self._ha, lambda: self._api.post(text), options, body=body)


class _Pods:
    """``CoreV1Api``."""

    def __init__(self, api: LeaseApi, ha: Ha) -> None:
        self._api, self._ha = api, ha

    async def patch_namespaced_pod(
        self, pod: str, space: str, body: dict[str, Any], **options: Any
    ) -> Response:
        """PATCH."""
        assert (pod, space) == (self._ha.node, NAMESPACE)
        return await self._api.ask(self._ha, lambda: self._api.patch_pod(pod, body), options)


def _renewed(body: dict[str, Any]) -> int:
    return int(body["metadata"]["annotations"]["renewed"])


def _check_fields(before: dict[str, Any], now: dict[str, Any], at: datetime.datetime) -> None:
    """Check what people and other tools see of a write: their fields, and those of ``spec``."""
    if _foreign(before) != _foreign(now):
        raise Violation(f"a write changes fields of others: {_foreign(before)} {_foreign(now)}")
    was, spec = before["spec"], now["spec"]
    is_another = was["holderIdentity"] != spec["holderIdentity"]
    transitions = spec.get("leaseTransitions", 0) - was.get("leaseTransitions", 0)
    if is_another != (transitions == 1) or is_another != (was["renewTime"] < spec["acquireTime"]):
        raise Violation(f"the holder {was} becomes {spec}")
    if spec["leaseDurationSeconds"] * 1000 < TIMES.lease_ms:
        raise Violation(f"the lease lasts longer than {spec}")


def _foreign(body: dict[str, Any]) -> list[tuple[str, str]]:
    metadata = body["metadata"]
    fields = (*metadata["annotations"].items(), *(metadata.get("labels") or {}).items())
    return [field for field in fields if field[0].startswith(FOREIGN)]
