"""Run the pods of rendered manifests on this machine, like a cluster.

One process contains the API server, the StatefulSet controller, the kubelets and the Services. Each
pod is a network namespace with a new address, so that a recreated pod has moved. The step before is
``starting``; the step after is ``drilling`` or an interactive ``python -m drills.pods``.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import os
import shutil
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from drills.namespaces import Namespaces
from drills.pods.api import Api, make_authority
from drills.pods.containers import Image
from drills.pods.environment import Placed
from drills.pods.kubelet import Context, Event, RunningPod
from drills.pods.objects import Manifest, Objects, namespace_of, revision_of
from drills.pods.plans import PodPlan, plan_pod
from drills.pods.rbac import Account
from drills.pods.rollout import PodState, Step, Verb, Wanted, next_steps
from drills.pods.services import Member
from drills.pods.volumes import CA_NAME
from drills.pods.wiring import API_ADDRESS, API_HOST, Published, Wiring

POLL_S: Final = 0.1
NODE_ADDRESS: Final = "10.213.255.254"
"""The value of ``status.hostIP``; the address is not used."""


class _Life(NamedTuple):
    """Task and resources of a pod that was started."""

    task: asyncio.Task[None]
    host: str
    token: str
    directory: Path


class Cluster:
    """Runs the applied objects; use it as ``async with Cluster(…) as cluster``."""

    def __init__(
        self,
        objects: Objects,
        directory: Path,
        network: Namespaces,
        *,
        on_event: Callable[[Event], None],
        images: Mapping[str, Image] | None = None,
        published: Published | None = None,
    ) -> None:
        """directory: contains claims, logs and volumes; claims and logs are kept. images: contents
        of images other than the project's own.
        """
        self.objects = objects
        self.directory, self.network = directory, network
        self.images = dict(images or {})
        self.api = Api(lambda: self.objects)
        self._adjust: Callable[[PodPlan], PodPlan] = lambda plan: plan
        """Change applied by a drill to pods created from now on, without a new template."""
        self.pods: dict[str, RunningPod] = {}
        self.events: list[Event] = []
        self._on_event = on_event
        self.wiring = Wiring(network, lambda: self.objects, self.members, published or {})
        self._scratch = directory / "scratch"
        self._lives: dict[str, _Life] = {}
        self._templates: dict[str, Manifest] = {}
        self._current: dict[str, str] = {}
        self._keeper: asyncio.Task[None] | None = None

    @contextlib.contextmanager
    def adjusting(self, adjust: Callable[[PodPlan], PodPlan]) -> Iterator[None]:
        """Change the plans of the pods that are created during the block."""
        before, self._adjust = self._adjust, adjust
        try:
            yield
        finally:
            self._adjust = before

    async def __aenter__(self) -> Cluster:
        self.directory.mkdir(parents=True, exist_ok=True)
        # Remove the files of a run that was killed. The directory is private because it has
        # secrets.
        shutil.rmtree(self._scratch, ignore_errors=True)
        self._scratch.mkdir(mode=0o700)
        (self.directory / "logs").mkdir(exist_ok=True)
        self.network.add_here(API_HOST, API_ADDRESS)
        authority = make_authority(self._scratch / "api", API_ADDRESS)
        self._authority = authority.certificate.read_text(encoding="ascii")
        self.apply(self.objects)
        await self.api.start(API_ADDRESS, authority)
        await self.wiring.serve()
        self._keeper = asyncio.create_task(self._keep())
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._end_control()
        for pod in self.pods.values():
            pod.kill()
        tasks = (life.task for life in self._lives.values())
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.wiring.close()
        await self.api.close()
        shutil.rmtree(self._scratch, ignore_errors=True)

    async def stop(self) -> None:
        """Delete all pods gracefully, the highest ordinal first, and create no new ones."""
        await self._end_control()
        for name in sorted(self.pods, reverse=True):
            self.delete(name)
            await asyncio.wait([self._lives[name].task])
            self._remove_ended()
            self._show()

    async def _end_control(self) -> None:
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.gather(self._keeper, return_exceptions=True)
            self._keeper = None

    # -- applied objects --------------------------------------------------------------------------

    def apply(self, objects: Objects) -> None:
        """Apply new manifests; StatefulSets whose template has changed are rolled out."""
        roots = {"apiVersion": "v1", "kind": "ConfigMap", "data": {"ca.crt": self._authority}}
        namespaces = {namespace_of(found) for found in objects} - {""}
        roots_of = (
            {**roots, "metadata": {"name": CA_NAME, "namespace": namespace}}
            for namespace in namespaces
            if objects.find("ConfigMap", namespace, CA_NAME) is None
        )
        self.objects = Objects([*objects, *roots_of])
        for stateful_set in self.stateful_sets:
            revision = revision_of(stateful_set["spec"]["template"])
            self._templates[revision] = copy.deepcopy(dict(stateful_set))
            self._current.setdefault(_key(stateful_set), revision)

    def check(self) -> None:
        """Raise the error that has ended the control loop, if any."""
        if self._keeper is not None and self._keeper.done():
            self._keeper.result()

    @property
    def stateful_sets(self) -> list[Manifest]:
        return self.objects.of_kind("StatefulSet")

    def is_rolled_out(self) -> bool:
        """Return whether all wanted pods exist, are ready and have the newest template."""
        self.check()
        for stateful_set in self.stateful_sets:
            wanted, pods = self._wanted(stateful_set), self._states(stateful_set)
            if len(pods) != wanted.replicas or any(
                not pod.healthy or pod.revision != wanted.revision(ordinal)
                for ordinal, pod in pods.items()
            ):
                return False
        return True

    # -- actions on pods --------------------------------------------------------------------------

    def delete(self, name: str, grace_s: float | None = None) -> None:
        """Delete a pod like ``kubectl delete pod``; the controller then replaces it."""
        self.pods[name].delete(grace_s)
        self._show()

    def lose(self, name: str) -> None:
        """Kill all processes of a pod at once, as if its node were lost; it is recreated elsewhere
        with the same claims.
        """
        self.pods[name].kill()
        self._show()

    def host(self, name: str) -> str:
        """Return the name of a pod's network host, for cuts."""
        return self._lives[name].host

    def labels(self, name: str) -> dict[str, str]:
        """Return a pod's labels, as the API returns them."""
        return self.api.server.objects.labels(self.pods[name].plan.namespace, name)

    def role(self, name: str) -> str:
        """Return a pod's role label; empty if there is none."""
        return self.labels(name).get("role", "")

    def probe_kills(self) -> int:
        """Return how many containers were killed because of probes so far."""
        return sum(event.reason == "Killing" for event in self.events)

    # -- the loop ---------------------------------------------------------------------------------

    async def _keep(self) -> None:
        while True:
            self._remove_ended()
            for stateful_set in self.stateful_sets:
                wanted = self._wanted(stateful_set)
                for step in next_steps(wanted, self._states(stateful_set)):
                    self._do(stateful_set, step)
                states = self._states(stateful_set).values()
                if states and all(state.revision == wanted.update for state in states):
                    self._current[_key(stateful_set)] = wanted.update
            self._show()
            await asyncio.sleep(POLL_S)

    def _wanted(self, stateful_set: Manifest) -> Wanted:
        spec = stateful_set["spec"]
        strategy = spec.get("updateStrategy") or {}
        return Wanted(
            replicas=int(spec.get("replicas", 1)),
            parallel=spec.get("podManagementPolicy") == "Parallel",
            current=self._current[_key(stateful_set)],
            update=revision_of(spec["template"]),
            partition=int((strategy.get("rollingUpdate") or {}).get("partition", 0)),
            on_delete=strategy.get("type") == "OnDelete",
        )

    def _states(self, stateful_set: Manifest) -> dict[int, PodState]:
        prefix, namespace = f"{stateful_set['metadata']['name']}-", namespace_of(stateful_set)
        return {
            int(name.removeprefix(prefix)): PodState(pod.plan.revision, pod.ready, pod.terminating)
            for name, pod in self.pods.items()
            if name.startswith(prefix)
            and name.removeprefix(prefix).isdigit()
            and pod.plan.namespace == namespace
        }

    def _do(self, stateful_set: Manifest, step: Step) -> None:
        if step.verb is Verb.CREATE:
            self._create(self._templates[step.revision], step)
        else:
            self.delete(f"{stateful_set['metadata']['name']}-{step.ordinal}")

    def _create(self, template: Manifest, step: Step) -> None:
        plan = self._adjust(plan_pod(template, step.ordinal, step.revision))
        uid = str(uuid.uuid4())
        host = self.network.add(f"{plan.name}.{uid[:8]}")
        directory = self._scratch / f"{plan.name}.{uid[:8]}"
        directory.mkdir()
        token = self.api.new_token(Account(plan.namespace, plan.account))
        placed = Placed(uid, host.address, f"node-{plan.name}", NODE_ADDRESS, _allocatable())
        context = Context(
            objects=self.objects,
            services=self.wiring.links(plan.namespace),
            network=self.network.descriptor(host.name),
            directory=directory,
            cluster_directory=self.directory,
            token=token,
            images=self.images,
            on_event=self._record,
        )
        context.hosts_file.write_text("", encoding="ascii")
        self.api.server.objects.make_pod(plan.namespace, plan.name, plan.labels)
        pod = RunningPod(plan, placed, context)
        task = asyncio.create_task(pod.run(), name=plan.name)
        self.pods[plan.name] = pod
        self._lives[plan.name] = _Life(task, host.name, token, directory)
        self._show()

    def _remove_ended(self) -> None:
        for name, life in list(self._lives.items()):
            if life.task.done():
                del self._lives[name]
                pod = self.pods.pop(name)
                self.api.forget(life.token)
                self.api.server.objects.remove_pod(pod.plan.namespace, name)
                self.network.remove(life.host)
                shutil.rmtree(life.directory, ignore_errors=True)
                self._record(Event(time.monotonic(), name, "", "Gone", ""))
                life.task.result()

    def _record(self, event: Event) -> None:
        self.events.append(event)
        self._on_event(event)

    def members(self) -> list[Member]:
        """Return all pods as Services see them."""
        return [
            Member(
                pod.plan, pod.placed.address, self.labels(name), pod.ready and not pod.terminating
            )
            for name, pod in self.pods.items()
        ]

    def _show(self) -> None:
        """Update names and policies for the current pods."""
        self.wiring.show({name: life.directory / "hosts" for name, life in self._lives.items()})


def _key(stateful_set: Manifest) -> str:
    return f"{namespace_of(stateful_set)}/{stateful_set['metadata']['name']}"


def _allocatable() -> dict[str, str]:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {"cpu": str(os.cpu_count() or 1), "memory": str(memory), "ephemeral-storage": "10Gi"}


def described(cluster: Cluster) -> list[tuple[str, ...]]:
    """Return rows about the pods: name, address, role, ready containers, restarts, reason."""
    return [
        (
            name,
            pod.placed.address,
            cluster.role(name),
            f"{sum(found.ready for found in pod.containers.values())}/{len(pod.containers)}",
            str(sum(found.restarts for found in pod.containers.values())),
            pod.failed or ("terminating" if pod.terminating else ""),
        )
        for name, pod in sorted(cluster.pods.items())
    ]
