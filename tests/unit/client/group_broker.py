"""A fake broker with groups for the client's tests: the test assigns queues and causes faults.

By itself it only assigns everything to a member that joins alone, and knows neither sessions nor
time. tests/processes test the client with the real broker.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Collection, Iterable
from typing import Any

import msgpack
from aiohttp import web

from tests.unit.client.fake_broker import FakeBroker, Fault, answer, error
from tidemark.formats import properties
from tidemark.offsets import Queue


class GroupBroker(FakeBroker):
    """One group over the queues of a ``FakeBroker``."""

    def __init__(self) -> None:
        super().__init__()
        self.group_faults: dict[str, list[Fault]] = {}
        """Per call (``heartbeat``, ``fetch``, ``commit``, …): each replaces one answer."""
        self.lost_answers: dict[str, int] = {}
        """Per call: for this many of them, the connection breaks after they are carried out."""
        self.config: dict[str, Any] = {
            "order": False,
            "broadcast": False,
            "start": "first",
            "retry_max": 16,
            "lag_objective_ms": None,
        }
        self.generation = 1 << 32
        self.members: dict[str, list[Queue]] = {}
        self.holding: dict[str, set[Queue]] = {}
        self.incarnations: dict[str, str] = {}
        self.cursors: dict[tuple[str, Queue], int] = {}
        self.sequences: dict[str, int] = {}
        self.committed: dict[Queue, int] = {}
        self.commits: list[dict[str, Any]] = []
        self.nacks: list[dict[str, Any]] = []
        """Calls that store something."""
        self.nack_ids: list[str | None] = []
        self.nack_repeats = 0
        self.heartbeats: list[dict[str, Any]] = []
        self.fetches: list[dict[str, Any]] = []
        self.left: list[str] = []
        self.min_offsets: dict[Queue, int] = {}
        self.keeps = False
        """Whether it confirms to a joining member that the queues that it claims are kept."""
        self.unknown_fields: set[str] = set()
        """Fields that it rejects by name, as a broker of the version before."""
        self.session_ms: int | None = None
        self.changed = asyncio.Condition()
        self.answers_heartbeats = asyncio.Event()
        self.answers_heartbeats.set()

    def put(self, topic: str, queue: int, *bodies: bytes, **wire: Any) -> None:
        """Store messages and wake held fetches."""
        while len(self.queues.setdefault(topic, [])) <= queue:
            self.queues[topic].append([])
        for body in bodies:
            self.add(topic, queue, {"body": body, **wire})
        self._notify()

    def assign(self, member: str, queues: Iterable[Queue]) -> None:
        """From now on a member has these queues; others lose them."""
        wanted = set(queues)
        for other, has in self.members.items():
            if other != member:
                self.members[other] = [queue for queue in has if queue not in wanted]
        self.members[member] = sorted(wanted)
        for queue in wanted:
            self.cursors[member, queue] = self.committed.get(queue, 0)
        self.generation += 1
        self._notify()

    def forget(self) -> None:
        """Simulate a restart: members and places are gone, generations begin anew."""
        self.members.clear()
        self.cursors.clear()
        self.generation = ((self.generation >> 32) + 1) << 32
        self._notify()

    def _notify(self) -> None:
        async def notify() -> None:
            async with self.changed:
                self.changed.notify_all()

        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return
        self._notifying = loop.create_task(notify())

    async def _fault(self, call: str, request: web.Request) -> web.StreamResponse | None:
        self.came.set()
        faults = self.group_faults.get(call)
        return await faults.pop(0)(request) if faults else None

    def _refusal(self, fields: Collection[str]) -> web.Response | None:
        field = min(self.unknown_fields & set(fields), default=None)
        return None if field is None else error(400, "bad-request", field=field)

    def _said(self, call: str, request: web.Request) -> None:
        """Break the connection instead of answering if the test asks for it."""
        if self.lost_answers.get(call, 0) > 0:
            self.lost_answers[call] -= 1
            assert request.transport is not None
            request.transport.abort()

    async def group(self, request: web.Request) -> web.StreamResponse:
        if (fault := await self._fault("group", request)) is not None:
            return fault
        if request.method == "PUT":
            self.config.update(msgpack.unpackb(await request.read()))
            return answer(self.config)
        nothing = dict.fromkeys(("messages", "bytes", "seconds", "expiring_messages"), 0)
        nothing |= dict.fromkeys(("in_flight", "lost", "ahead"), 0)
        group = {"group": request.match_info["group"], "generation": None, **self.config}
        return answer({**group, "members": [], "topics": [], "lag": {**nothing, "reasons": {}}})

    async def member(self, request: web.Request) -> web.StreamResponse:
        name = request.match_info["member"]
        if request.method == "DELETE":
            if (fault := await self._fault("leave", request)) is not None:
                return fault
            if (refused := self._refusal(request.query.keys())) is not None:
                return refused
            if request.query.get("incarnation") != self.incarnations.get(name):
                return error(404, "unknown-member")
            self.left.append(name)
            self.members.pop(name, None)
            self.came.set()
            return web.Response(status=204)
        if (fault := await self._fault("heartbeat", request)) is not None:
            return fault
        await self.answers_heartbeats.wait()
        body = msgpack.unpackb(await request.read())
        self.heartbeats.append({"member": name, **body})
        self.came.set()
        if (refused := self._refusal(body)) is not None:
            return refused
        incarnation = body.get("incarnation")
        for subscription in body["subscriptions"]:
            if subscription["topic"] not in self.queues:
                return error(404, "unknown-topic")
        if "generation" not in body:
            if self.incarnations.get(name, incarnation) != incarnation:
                self.generation += 1
                self._notify()
            if incarnation is not None:
                self.incarnations[name] = incarnation
        elif self.incarnations.get(name) != incarnation:
            return error(409, "member-fenced")
        if name not in self.members:
            if "generation" in body:
                return error(404, "unknown-member")
            taken = {queue for has in self.members.values() for queue in has}
            free = {
                (subscription["topic"], number)
                for subscription in body["subscriptions"]
                for number in range(len(self.queues[subscription["topic"]]))
            } - taken
            self.assign(name, free)
        if "generation" not in body:
            for queue in self.members[name]:
                self.cursors[name, queue] = self.committed.setdefault(queue, 0)
        self.holding[name] = {tuple(queue) for queue in body.get("holding", ())}
        return answer(
            {
                "generation": self.generation,
                "assignment": self.members[name],
                "kept": sorted(self.holding[name]) if self.keeps else [],
                "session_ms": self.session_ms or body["session_ms"],
                "order": self.config["order"],
                "broadcast": self.config["broadcast"],
                "retry_max": self.config["retry_max"],
            }
        )

    async def fetch(self, request: web.Request) -> web.StreamResponse:
        name = request.match_info["member"]
        if (fault := await self._fault("fetch", request)) is not None:
            return fault
        body = msgpack.unpackb(await request.read())
        self.fetches.append(body)
        self.came.set()
        if (refused := self._refusal(body)) is not None:
            return refused
        if name not in self.members:
            return error(404, "unknown-member")
        if body["generation"] != self.generation:
            return error(409, "stale-generation")
        if (sequence := body.get("sequence")) is not None:
            if sequence < self.sequences.get(name, 0):
                return self._fetched([])
            self.sequences[name] = sequence
        for each in body.get("positions", ()):
            self.cursors[name, (each["topic"], each["queue"])] = each["offset"]
        try:
            async with asyncio.timeout(body["wait_ms"] / 1000), self.changed:
                paused = {tuple(queue) for queue in body.get("paused", ())}
                while not (found := self._found(name, body["max"], paused)):
                    if body["generation"] != self.generation:
                        break
                    await self.changed.wait()
        except TimeoutError:
            found = []
        self._said("fetch", request)
        return self._fetched(found)

    def _fetched(self, found: list[tuple[dict[str, Any], list[bytes]]]) -> web.Response:
        queues = [facts for facts, _ in found]
        packed = msgpack.packb({"generation": self.generation, "queues": queues})
        records = b"".join(record for _, records in found for record in records)
        return web.Response(
            body=struct.pack(">I", len(packed)) + packed + records,
            content_type="application/vnd.tidemark.records",
        )

    def _found(
        self, name: str, count: int, paused: Collection[tuple[Any, ...]]
    ) -> list[tuple[dict[str, Any], list[bytes]]]:
        found: list[tuple[dict[str, Any], list[bytes]]] = []
        for queue in self.members.get(name, ()):
            topic, number = queue
            if queue in paused:
                continue
            records = self.queues[topic][number]
            at = self.cursors.get((name, queue), 0)
            if self.config["order"] and at > self.committed.get(queue, 0):
                continue
            status, first = "FOUND", self.min_offsets.get(queue, 0)
            taken: list[bytes] = []
            if at < first:
                status, end = "OFFSET_TOO_SMALL", first
            elif at > len(records):
                status, end = "OFFSET_OVERFLOW_BADLY", len(records)
            else:
                taken = records[at : at + count]
                end = at + len(taken)
                count -= len(taken)
            if end == at:
                continue
            self.cursors[name, queue] = end
            facts = {
                "topic": topic,
                "queue": number,
                "status": status,
                "from_offset": at,
                "next_offset": end,
                "min_offset": first,
                "max_offset": len(records),
                "size": sum(map(len, taken)),
            }
            found.append((facts, taken))
            if count <= 0:
                break
        return found

    async def offsets(self, request: web.Request) -> web.StreamResponse:
        if request.method == "GET":
            if (fault := await self._fault("committed", request)) is not None:
                return fault
            listed = [
                {"topic": topic, "queue": queue, "offset": offset}
                for (topic, queue), offset in self.committed.items()
            ]
            return answer({"offsets": listed})
        if (fault := await self._fault("commit", request)) is not None:
            return fault
        body = msgpack.unpackb(await request.read())
        name = body["member"]
        if name not in self.members:
            return error(404, "unknown-member")
        if body["generation"] != self.generation:
            return error(409, "stale-generation")
        moves = {(each["topic"], each["queue"]): each["offset"] for each in body["offsets"]}
        allowed = set(self.members[name]) | self.holding.get(name, set())
        if not moves.keys() <= allowed:
            return error(409, "not-assigned")
        self.commits.append({"ack": body.get("ack"), "offsets": moves})
        for queue, offset in moves.items():  # a member's late commit takes nothing back
            self.committed[queue] = max(offset, self.committed.get(queue, 0))
        self._notify()
        self.came.set()
        self._said("commit", request)
        return answer({"level": body.get("ack", "accepted")})

    async def nack(self, request: web.Request) -> web.StreamResponse:
        if (fault := await self._fault("nack", request)) is not None:
            return fault
        nack = msgpack.unpackb(await request.read())
        name, queue = nack.pop("member"), (nack["topic"], nack["queue"])
        if name not in self.members:
            return error(404, "unknown-member")
        if nack.pop("generation") != self.generation:
            return error(409, "stale-generation")
        if queue not in {*self.members[name], *self.holding.get(name, set())}:
            return error(409, "not-assigned")
        if (refused := self._refusal(nack)) is not None:
            return refused
        nack_id, is_repeat = nack.pop("nack_id", None), nack.pop("retry", False)
        if nack_id is None or nack_id not in self.nack_ids:
            self.nacks.append(nack)
        self.nack_ids.append(nack_id)
        self.nack_repeats += is_repeat
        self.came.set()
        self._said("nack", request)
        return answer({"status": "RETRY"})

    def put_retry(self, group: str, body: bytes, original_topic: str) -> None:
        """A message that was nacked for the group."""
        self.put(f"%RETRY%{group}", 0, body, properties={properties.RETRY_TOPIC: original_topic})

    def add_routes(self, app: web.Application) -> None:
        super().add_routes(app)
        app.router.add_route("*", "/v1/groups/{group}", self.group)
        app.router.add_route("*", "/v1/groups/{group}/members/{member}", self.member)
        app.router.add_post("/v1/groups/{group}/members/{member}/fetch", self.fetch)
        app.router.add_route("*", "/v1/groups/{group}/offsets", self.offsets)
        app.router.add_post("/v1/groups/{group}/nack", self.nack)
