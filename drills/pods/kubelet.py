"""One pod on its node: start, probe, restart and stop containers according to the manifest.

The step before is ``cluster``, which gave the pod an address and a network. The rules are pure
(``probes``); this module executes probes and commands. Every action is recorded as an
``Event`` with the kubelet's reason, so that a drill can count restarts caused by probes.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from drills.pods.asking import ask
from drills.pods.containers import ContainerProcess, Image, start_container
from drills.pods.environment import Placed, ServiceAddress, expand, variables
from drills.pods.objects import BadManifest, Objects
from drills.pods.plans import Container, Files, Handler, PodPlan, Probe, Sleep
from drills.pods.probes import Backoff, Kind, Probes
from drills.pods.volumes import ACCOUNT_PLACE, ACCOUNT_VOLUME, Volumes

TICK_S: Final = 0.05
GRACE_LEAST_S: Final = 2.0
"""Minimum time between SIGTERM and SIGKILL, even if preStop has used up the grace period."""


class Event(NamedTuple):
    at: float
    """Seconds of the monotonic clock."""
    pod: str
    container: str
    """Name of the container; empty for the pod itself."""
    reason: str
    message: str


class Context(NamedTuple):
    objects: Objects
    services: tuple[ServiceAddress, ...]
    network: int
    """Descriptor of its network namespace."""
    directory: Path
    """Directory for this pod only."""
    cluster_directory: Path
    """Directory for all pods: their logs, and the volumes that outlive them."""
    token: str
    images: Mapping[str, Image]
    on_event: Callable[[Event], None]

    @property
    def hosts_file(self) -> Path:
        return self.directory / "hosts"

    @property
    def claims(self) -> Path:
        return self.cluster_directory / "claims"


class RunningContainer:
    """One container across all its runs."""

    def __init__(self, container: Container) -> None:
        self.container = container
        self.backoff = Backoff()
        self.process: ContainerProcess | None = None
        """The current run, or the last one."""
        self.probes = Probes(container, 0)
        self.restarts = 0

    @property
    def started(self) -> ContainerProcess:
        """The current run of a container that was started."""
        assert self.process is not None, f"{self.container.name} was not started"
        return self.process

    @property
    def ready(self) -> bool:
        """Whether it runs and its probes report it as ready."""
        return self.process is not None and self.process.status is None and self.probes.ready


class RunningPod:
    """A pod; ``await run()`` lasts from its start to its end."""

    def __init__(self, plan: PodPlan, placed: Placed, context: Context) -> None:
        self.plan, self.placed, self._context = plan, placed, context
        self.terminating = False
        self.failed = ""
        """Reason that it cannot be started; empty if there is none."""
        self.containers = {found.name: RunningContainer(found) for found in plan.containers}
        self._volumes = Volumes(
            plan, placed, context.objects, context.directory, context.claims, context.token
        )
        self._stop = asyncio.Event()
        self._grace_s: float = plan.grace_s

    @property
    def ready(self) -> bool:
        """Whether all its containers are ready."""
        return not self.failed and all(found.ready for found in self.containers.values())

    async def run(self) -> None:
        """Run until the pod is deleted and all containers have ended."""
        try:
            self._volumes.make()
        except BadManifest as error:
            # Wait and report the reason, like a kubelet; here the object will not be created later.
            self.failed = str(error)
            self._emit("", "FailedMount", self.failed)
            await self._stop.wait()
            self._volumes.remove()
            return
        try:
            async with asyncio.TaskGroup() as tasks:
                for running in self.containers.values():
                    tasks.create_task(self._keep(running))
        finally:
            for running in self.containers.values():
                if running.process is not None:
                    running.process.kill()
            self._volumes.remove()

    def delete(self, grace_s: float | None = None) -> None:
        """Delete the pod: preStop, SIGTERM, and SIGKILL after grace_s (default: the manifest's)."""
        self.terminating = True
        self._grace_s = self.plan.grace_s if grace_s is None else grace_s
        self._stop.set()

    def kill(self) -> None:
        """SIGKILL all processes in all containers at once; the pod is not restarted."""
        self.terminating = True
        self._grace_s = 0
        for running in self.containers.values():
            if running.process is not None:
                running.process.kill()
        self._stop.set()

    async def run_in(self, container: str, *command: str, timeout_s: float = 30.0) -> str:
        """Run a command in a container; return its output. Raises RuntimeError if it fails."""
        process = self.containers[container].process
        if process is None:
            raise RuntimeError(f"{container} of {self.plan.name} does not run")
        ended = await process.run(command, timeout_s)
        if ended.status != 0:
            raise RuntimeError(f"{' '.join(command)} ended with {ended.status}: {ended.output}")
        return ended.output

    def log_path(self, container: str) -> Path:
        return self._context.cluster_directory / "logs" / f"{self.plan.name}.{container}.log"

    # -- one container ----------------------------------------------------------------------------

    async def _keep(self, running: RunningContainer) -> None:
        while not self.terminating:
            try:
                self._start(running)
            except (BadManifest, RuntimeError) as error:
                self._emit(running.container.name, "Failed", str(error))
                self.failed = str(error) if isinstance(error, BadManifest) else ""
                again_at = running.backoff.ended(started_at=time.monotonic(), now=time.monotonic())
            else:
                self.failed = ""
                again_at = await self._watch(running)
            if not self.terminating:
                await self._wait_until(again_at)
                running.restarts += 1

    async def _watch(self, running: RunningContainer) -> float:
        """Probe a container from its start to its end; return when it may be restarted."""
        process = running.started
        asking: dict[Kind, asyncio.Task[None]] = {}
        kill: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        try:
            while process.status is None:
                if self.terminating:
                    # Readiness is still probed, because a draining broker reports that it is not
                    # ready.
                    stopping = asyncio.create_task(self._end(running, self._grace_s))
                    while not stopping.done():
                        self._probe(running, asking, kill)
                        await asyncio.wait({stopping}, timeout=TICK_S)
                    stopping.result()
                    break
                self._probe(running, asking, kill)
                if kill.done():
                    await self._end(running, kill.result())
                    break
                await self._wait_until(time.monotonic() + TICK_S)
        finally:
            for task in asking.values():
                task.cancel()
            await asyncio.gather(*asking.values(), return_exceptions=True)
        status, now = process.status, time.monotonic()
        self._emit(running.container.name, "Ended", f"status {status}")
        return running.backoff.ended(started_at=process.started_at, now=now)

    def _start(self, running: RunningContainer) -> None:
        container, plan, context = running.container, self.plan, self._context
        defined = variables(container, plan, self.placed, context.objects, context.services)
        groups = {*plan.groups, *(() if plan.fs_group is None else (plan.fs_group,))}
        mounts = [(str(context.hosts_file), "/etc/hosts", False)]
        for mount in container.mounts:
            source = self._volumes.places[mount.volume]
            if mount.sub_path:
                source = source / expand(mount.sub_path, defined)
                source.mkdir(parents=True, exist_ok=True)
            read_only = mount.read_only or isinstance(self.plan.volumes[mount.volume], Files)
            mounts.append((str(source), mount.path, read_only))
        if plan.mounts_token and all(mount.path != ACCOUNT_PLACE for mount in container.mounts):
            mounts.append((str(self._volumes.places[ACCOUNT_VOLUME]), ACCOUNT_PLACE, True))
        running.process = start_container(
            container,
            command=[expand(part, defined) for part in container.command],
            environment=defined,
            hostname=plan.name,
            network=context.network,
            groups=groups,
            mounts=mounts,
            image=context.images.get(container.image, Image({})),
            directory=context.directory / container.name,
            log_path=self.log_path(container.name),
        )
        running.probes = Probes(container, time.monotonic())
        self._emit(container.name, "Started", f"process {running.process.pid}")

    # -- probes -----------------------------------------------------------------------------------

    def _probe(
        self,
        running: RunningContainer,
        asking: dict[Kind, asyncio.Task[None]],
        kill: asyncio.Future[float],
    ) -> None:
        for kind, probe in running.probes.due(time.monotonic(), terminating=self.terminating):
            task = asking.get(kind)
            if task is None or task.done():
                asking[kind] = asyncio.create_task(self._ask(running, kind, probe, kill))

    async def _ask(
        self, running: RunningContainer, kind: Kind, probe: Probe, kill: asyncio.Future[float]
    ) -> None:
        process, probes = running.started, running.probes
        answer = await ask(
            probe.handler, self._context.network, self.placed.address, process, probe.timeout_s
        )
        if process.status is not None:
            return
        judgement = probes.take(kind, succeeded=answer.succeeded)
        name = running.container.name
        if judgement.unhealthy:
            self._emit(name, "Unhealthy", f"{kind} probe failed: {answer.output}")
        if judgement.kill and not kill.done():
            self._emit(name, "Killing", f"it failed its {kind} probe, and will be restarted")
            kill.set_result(self.plan.grace_s if probe.grace_s is None else probe.grace_s)

    # -- the end ----------------------------------------------------------------------------------

    async def _end(self, running: RunningContainer, grace_s: float) -> None:
        """Stop a container with preStop, SIGTERM and SIGKILL, within grace_s."""
        process, container = running.started, running.container
        began = time.monotonic()
        if container.pre_stop is not None and grace_s > 0 and process.status is None:
            await self._pre_stop(process, container, container.pre_stop, grace_s)
        process.send(signal.SIGTERM)
        left = max(GRACE_LEAST_S, grace_s - (time.monotonic() - began)) if grace_s > 0 else 0
        deadline = time.monotonic() + left
        await process.ended(deadline - time.monotonic())
        if process.status is None:
            self._emit(container.name, "Killed", f"it did not end within {grace_s:g} s")
            process.kill()

    async def _pre_stop(
        self, process: ContainerProcess, container: Container, hook: Handler, grace_s: float
    ) -> None:
        began = time.monotonic()
        if isinstance(hook, Sleep):
            await asyncio.sleep(min(hook.seconds, grace_s))
            return
        answer = await ask(hook, self._context.network, self.placed.address, process, grace_s)
        took = time.monotonic() - began
        reason = "PreStop" if answer.succeeded else "FailedPreStopHook"
        self._emit(container.name, reason, f"after {took:.2f} s: {answer.output}")

    async def _wait_until(self, at: float) -> None:
        """Wait until a time, or until the pod is to end."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stop.wait(), max(0.0, at - time.monotonic()))

    def _emit(self, container: str, reason: str, message: str) -> None:
        event = Event(time.monotonic(), self.plan.name, container, reason, message)
        self._context.on_event(event)
