"""One history: builds a cluster and its programs, lets faults happen, waits for calm, judges."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Sequence
from random import Random
from typing import Final

from services.broker.groups.counters import GroupCounters
from shared.metrics.registry import Registry
from tests.simulation.cluster.broker_group import BrokerGroup, Wiring
from tests.simulation.cluster.judge import Counts, Judge, Violation
from tests.simulation.cluster.loop import Host, Loop
from tests.simulation.cluster.names import NamesInstance
from tests.simulation.cluster.network import FAIR, LATE_S, Network, Weather
from tests.simulation.cluster.plan import Fault, GroupPlan, Plan
from tests.simulation.cluster.programs import Connecting, Consumer, Load, Producer, Reading
from tests.simulation.cluster.seams import simulated
from tidemark.client.client import Client
from tidemark.errors import TidemarkError

CALM_S: Final = 200.0
"""Virtual time within which everything is handled once no fault is left."""
CHECK_S: Final = 0.5
SLOW_DISKS: Final = 100.0
ADMIN: Final = Connecting((), 60.0, "wait")
"""How an operator connects; the addresses are added."""


class World:
    """All of one history."""

    def __init__(
        self, seed: int, plan: Plan, trace: Callable[[str], None] = lambda line: None
    ) -> None:
        self.plan, self._seed, self._trace = plan, seed, trace
        self._random = Random(f"world/{seed}")
        self.loop = Loop()
        self.network = Network(self.loop, seed)
        self.judge = Judge(self.loop.time)
        urls = [f"http://names-{number}.example:9870" for number in range(plan.names)]
        self.names = [
            NamesInstance(self.loop, self.network, f"names-{number}", urls, self.judge)
            for number in range(plan.names)
        ]
        self._wiring = Wiring(
            self.loop, self.network, self.judge, GroupCounters(Registry("broker")), urls
        )
        self.groups: dict[str, BrokerGroup] = {}
        self._spare = list(plan.spare)
        self.producers: list[Producer] = []
        self.consumers: list[Consumer] = []
        self._program_count = 0
        self._held_faults: set[asyncio.Task[None]] = set()
        self._admin: Client

    def run(self) -> Counts:
        """Play the history. Raises Violation, or what the tested code raises."""
        with simulated(self.loop, self.network, self._seed):
            try:
                main = self.loop.create_task(self._main(), context=Host("operator").context)
                while not main.done():
                    self.loop.run_until_complete(self._some_time(main))
                    if self.loop.failures:
                        raise self.loop.failures[0]
                main.result()
            finally:
                self.loop.dispose()
        return self.judge.counts(self.network.call_count)

    async def _some_time(self, main: asyncio.Task[None]) -> None:
        """Return after a while, so that a failure of a part ends the history."""
        await asyncio.wait((main,), timeout=CHECK_S)

    async def _main(self) -> None:
        for instance in self.names:
            instance.start([each.name for each in self.plan.groups])
        for each in self.plan.groups:
            self._add(each)
        async with self._connecting(ADMIN).connect() as admin:
            self._admin = admin
            await self._create_topics(self.plan.groups)
            await self._check_routes()
            for reading in self.plan.readings:
                self._start_consumer(reading)
            readers = {(topic, each.group) for each in self.plan.readings for topic in each.topics}
            for topic, group in sorted(readers):
                self.judge.expect_reader(topic, group)
            for load in self.plan.loads:
                self._start_producer(load)
            await self._play()
            await self._calm_down()
            await self._finish()
            await self._check_routes()

    # -- building --------------------------------------------------------------------------------

    def _connecting(self, how: Connecting | None = None) -> Connecting:
        """Return how a program connects: to the name services in any order, or by a broker."""
        random = self._random
        urls = [each.url for each in self.names]
        random.shuffle(urls)
        if how is not None:
            return how._replace(urls=urls)
        if random.random() < 0.2:
            group = random.choice([each for each in self.groups.values() if not each.is_removed])
            urls = [*(node.url for node in group.nodes), *urls]
        return Connecting(
            urls, random.choice((5.0, 30.0)), random.choice(("wait", "wait", "reject"))
        )

    def _add(self, plan: GroupPlan) -> BrokerGroup:
        group = self.groups[plan.name] = BrokerGroup(
            plan.name, plan.nodes, self._wiring, Random(f"{plan.name}/{self._seed}")
        )
        group.start()
        return group

    async def _create_topics(self, plans: Sequence[GroupPlan]) -> None:
        """Create the topics of broker groups; repeated until all have them."""
        for plan in plans:
            for topic, queues in plan.topics.items():
                await self._resize(topic, plan.name, queues)

    async def _resize(self, topic: str, broker_group: str, queues: int) -> None:
        self.judge.offers(broker_group, topic, queues)
        await self._insist(
            lambda: self._admin.create_topic(topic, queues=queues, broker_groups=[broker_group])
        )

    async def _insist(self, call: Callable[[], object]) -> None:
        """Repeat an operator's call until it succeeds."""
        while True:
            try:
                await call()  # type: ignore[misc]
            except TidemarkError as error:
                self._trace(f"an operator is answered {error!r}")
                await asyncio.sleep(1.0)
            else:
                return

    def _start_producer(self, load: Load) -> None:
        self._program_count += 1
        name = f"p{self._program_count}"
        program = Producer(name, self.loop, self.judge, self._connecting(), load, self._seed)
        self.producers.append(program)
        program.start()

    def _start_consumer(self, reading: Reading) -> None:
        self._program_count += 1
        name = f"m{self._program_count}"
        program = Consumer(name, self.loop, self.judge, self._connecting(), reading, self._seed)
        self.consumers.append(program)
        program.start()

    # -- faults ----------------------------------------------------------------------------------

    async def _play(self) -> None:
        """Let the faults of the plan begin at their times."""
        began_s = self.loop.time()
        for at_s, fault in self.plan.faults:
            await self._sleep_until(began_s + at_s)
            task = asyncio.create_task(self._strike(fault), name=fault.name)
            self._held_faults.add(task)
            task.add_done_callback(self._held_faults.discard)
        await self._sleep_until(began_s + self.plan.duration_s)

    async def _sleep_until(self, at_s: float) -> None:
        await asyncio.sleep(max(0.0, at_s - self.loop.time()))

    async def _strike(self, fault: Fault) -> None:
        random = self._random
        self.judge.faults += 1
        self._trace(f"{self.loop.time():.3f} {fault.value}")
        match fault:
            case Fault.KILL_MASTER | Fault.STOP_MASTER | Fault.SWITCH | Fault.LOSE_ALL:
                await self._strike_group(fault)
            case Fault.RESTART_NAMES:
                await self._restart_names(random.choice(self.names), random.uniform(0, 8))
            case Fault.LOSE_NAMES:
                aways = [random.uniform(0, 12) for _ in self.names]
                await asyncio.gather(*map(self._restart_names, self.names, aways))
            case Fault.CUT_CLIENTS:
                programs = [each.name for each in (*self.producers, *self.consumers)]
                await self._cut(programs, self._server_names())
            case Fault.CUT_BROKERS:
                await self._cut(
                    [node.name for group in self.groups.values() for node in group.nodes],
                    [each.name for each in self.names],
                )
            case Fault.STORM:
                self.network.weather = self.plan.storm
                await asyncio.sleep(random.uniform(2, 15))
                self.network.weather = FAIR
            case Fault.SLOW:
                self._slow_down(SLOW_DISKS, FAIR._replace(is_slow=0.5))
                await asyncio.sleep(random.uniform(2, 10))
                self._slow_down(1.0, FAIR)
            case Fault.DRAIN | Fault.REMOVE | Fault.ADD | Fault.RESIZE:
                await self._change_queues(fault)
            case _:
                await self._strike_program(fault)

    def _slow_down(self, disks: float, weather: Weather) -> None:
        self.network.weather = weather
        for group in self.groups.values():
            group.log.slowness = disks

    async def _strike_group(self, fault: Fault) -> None:
        group = self._idle_group()
        if group is None:
            return
        group.is_busy = True
        random = self._random
        match fault:
            case Fault.KILL_MASTER:
                await group.lose_master(random.uniform(0.5, 8))
            case Fault.STOP_MASTER:
                await group.stop_master(random.uniform(0.2, 10))
            case Fault.SWITCH:
                await group.switch()
            case _:
                is_long = self.plan.duration_s > 100 and random.random() < 0.5
                await group.lose_all(random.uniform(1, 10) + (130 if is_long else 0))
        group.is_busy = False

    def _idle_group(self) -> BrokerGroup | None:
        """Return a broker group that serves and with which nothing else happens."""
        found = [each for each in self.groups.values() if each.serves and not each.is_busy]
        return self._random.choice(found) if found else None

    async def _restart_names(self, instance: NamesInstance, away_s: float) -> None:
        if not instance.runs:
            return
        self.judge.names_restarts += 1
        instance.kill()
        await asyncio.sleep(away_s)
        instance.start([name for name, each in self.groups.items() if not each.is_removed])

    def _server_names(self) -> list[str]:
        nodes = [node.name for group in self.groups.values() for node in group.nodes]
        return [*nodes, *(each.name for each in self.names)]

    async def _cut(self, callers: Sequence[str], servers: Sequence[str]) -> None:
        random = self._random
        some = random.sample(callers, max(1, len(callers) // 2))
        others = random.sample(servers, max(1, len(servers) // 2))
        cut = {(caller, server) for caller in some for server in others}
        self.network.cuts |= cut
        is_long = self.plan.duration_s > 100
        await asyncio.sleep(random.uniform(1, 12) + (130 if is_long else 0))
        self.network.cuts -= cut

    async def _change_queues(self, fault: Fault) -> None:
        random = self._random
        if fault is Fault.ADD:
            if self._spare:
                plan = self._spare.pop()
                self.judge.may_be_absent(plan.name, plan.topics)
                self._add(plan)
                await self._create_topics([plan])
            return
        group = self._idle_group()
        if group is None:
            return
        topics = self._topics_of(group.name)
        if fault is Fault.RESIZE:
            topic = random.choice(sorted(topics))
            await self._resize(topic, group.name, topics[topic] + random.randint(1, 2))
            return
        if group.is_drained or not self._may_drain(group):
            return
        group.is_busy = True
        group.is_drained = True
        self.judge.may_be_absent(group.name, topics)
        await self._insist(lambda: self._admin.drain(group.name))
        if fault is Fault.REMOVE:
            await self._remove(group)
        elif random.random() < 0.7:
            group.is_busy = False  # a failover must not forget it
            await asyncio.sleep(random.uniform(1, 15))
            await self._insist(lambda: self._admin.undrain(group.name))
            group.is_drained = False
            return
        group.is_busy = False

    def _topics_of(self, broker_group: str) -> dict[str, int]:
        plans = (*self.plan.groups, *self.plan.spare)
        return next(each.topics for each in plans if each.name == broker_group)

    def _may_drain(self, group: BrokerGroup) -> bool:
        """Whether other broker groups take the messages of all its topics."""
        return all(
            any(
                other is not group and not other.is_drained and topic in self._topics_of(other.name)
                for other in self.groups.values()
            )
            for topic in self._topics_of(group.name)
        )

    async def _remove(self, group: BrokerGroup) -> None:
        """Stop a drained broker group once it is empty, and take it out of the settings."""
        while not (group.refuses_sends and self.judge.is_empty(group.name)):
            await self._insist(lambda: self._admin.drain(group.name))
            await asyncio.sleep(CHECK_S)
        await group.remove()
        for instance in self.names:
            await self._restart_names(instance, 1.0)

    async def _strike_program(self, fault: Fault) -> None:
        random = self._random
        is_consumer = fault in (
            Fault.CRASH_CONSUMER, Fault.STALL_CONSUMER, Fault.CHANGE_CONSUMERS
        )  # fmt: skip
        if is_consumer:
            consumer = random.choice(self.consumers)
            if fault is Fault.STALL_CONSUMER:
                await consumer.stall(random.uniform(0.5, 12))
                return
            self.consumers.remove(consumer)
            if fault is Fault.CRASH_CONSUMER:
                consumer.crash()
                await asyncio.sleep(random.uniform(0, 5))
                self._start_consumer(consumer.reading)
            else:
                self._start_consumer(consumer.reading)
                consumer.leave()
            return
        producer = random.choice(self.producers)
        if fault is Fault.STALL_PRODUCER:
            await producer.stall(random.uniform(0.5, 12))
            return
        self.producers.remove(producer)
        producer.crash()
        await asyncio.sleep(random.uniform(0, 5))
        self._start_producer(producer.load)

    # -- the end ---------------------------------------------------------------------------------

    async def _calm_down(self) -> None:
        """Wait until all faults are over."""
        self._trace(f"{self.loop.time():.3f} calm")
        while self._held_faults:
            await asyncio.wait(tuple(self._held_faults), timeout=CHECK_S)
            for task in [each for each in self._held_faults if each.done()]:
                task.result()
        self.network.weather = FAIR
        self.network.cuts.clear()
        await asyncio.sleep(LATE_S)
        for group in self.groups.values():
            if not group.is_drained:  # a late repetition may have drained it
                await self._insist(functools.partial(self._admin.undrain, group.name))

    async def _finish(self) -> None:
        """Let the producers end, and wait until every acknowledged message is handled."""
        for producer in self.producers:
            producer.is_ending = True
        await self._until(lambda: not self._sending(), self._sending)
        await self._until(lambda: not self.judge.unhandled(), self.judge.unhandled)
        self.judge.check_order()
        for message, place in self.judge.acked.items():
            if not self.groups[place.broker_group].log.has(message.body):
                raise Violation(f"{message} was acknowledged and is not in {place}")

    def _sending(self) -> list[str]:
        return [each.name for each in self.producers if not each.is_done]

    async def _until(self, holds: Callable[[], bool], what: Callable[[], Sequence[object]]) -> None:
        """Wait until a condition holds. Raises Violation with what is left."""
        give_up_at_s = self.loop.time() + CALM_S
        while not holds():
            if self.loop.time() > give_up_at_s:
                left = what()
                raise Violation(f"{CALM_S:g} s after the last fault {len(left)} left: {left[:8]}")
            await asyncio.sleep(CHECK_S)

    async def _check_routes(self) -> None:
        """Check that every name service shows every broker group as it is."""
        await self._until(lambda: not self._wrong_routes(), self._wrong_routes)

    def _wrong_routes(self) -> list[str]:
        found = []
        for instance in self.names:
            if not instance.is_complete:
                found.append(f"{instance.name} is not complete")
            for group in self.groups.values():
                if group.is_removed:
                    continue
                shown, real = instance.shown(group.name), group.real()
                if shown != real:
                    found.append(f"{instance.name} shows {group.name} as {shown}, it is {real}")
        return found
