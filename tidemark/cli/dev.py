"""``tidemark dev``: runs a node, a group or a cluster in one terminal, for development.

It starts the services as child processes with the local profile, shows their output, restarts those
that die, and stops them in order: brokers first, so that reput can dispatch everything appended.
"""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import aiohttp
import click

from tidemark.cli.children import Child
from tidemark.cli.local_nodes import (
    ADMIN_HOST,
    DevNode,
    LocalCluster,
    Ports,
    etcd_child,
    local_cluster,
    local_etcd,
)
from tidemark.cli.output import expected_errors, say
from tidemark.errors import NotServing

READY_TIMEOUT_S: Final = 60.0
READY_POLL_S: Final = 0.05
READY: Final = "ready"
REPORT_AFTER_S: Final = 10.0
"""A normal first start of a group takes some seconds, because its services wait for each other."""
REPORT_EVERY_S: Final = 2.0
NODES_MAX: Final = 5
GROUPS_MAX: Final = 8
NAMES_MAX: Final = 3


@click.command()
@click.option(
    "--store",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("data"),
    show_default=True,
    help="Directory of the store, or of a group's stores; created if it does not exist.",
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port",
    type=click.IntRange(1, 65_480),
    default=8080,
    show_default=True,
    help="Port of the API; probes, metrics and replication take the next ones, further nodes those "
    "ten higher.",
)
@click.option(
    "--nodes",
    type=click.IntRange(1, NODES_MAX),
    default=1,
    show_default=True,
    help="2 or more: a group, one master and its slaves.",
)
@click.option(
    "--lease",
    type=click.Choice(["directory", "etcd"]),
    default="directory",
    show_default=True,
    help="Where a group has its lease. etcd: one that is started with the nodes.",
)
@click.option(
    "--etcd-endpoints",
    metavar="URL,...",
    default="",
    help="With --lease etcd: members of an etcd that runs already; none is started.",
)
@click.option(
    "--groups",
    type=click.IntRange(1, GROUPS_MAX),
    default=1,
    show_default=True,
    help="2 or more: a cluster of as many broker groups, each of --nodes nodes.",
)
@click.option(
    "--names",
    type=click.IntRange(0, NAMES_MAX),
    default=0,
    show_default=True,
    help="Name services, with which all brokers register.",
)
@click.option("--verbose", "-v", is_flag=True, help="Show all log lines of the services.")
@expected_errors
def dev(
    store: Path,
    host: str,
    port: int,
    nodes: int,
    lease: str,
    etcd_endpoints: str,
    groups: int,
    names: int,
    verbose: bool,
) -> None:
    """Run a node or a group of nodes until Ctrl-C; the first send to a topic creates it."""
    if etcd_endpoints and lease != "etcd":
        raise click.UsageError("--etcd-endpoints belongs to --lease etcd")
    if lease == "etcd" and nodes == 1:
        raise click.UsageError("--lease etcd belongs to a group: add --nodes 2")
    endpoints, beside = tuple(filter(None, etcd_endpoints.split(","))), []
    if lease == "etcd" and not endpoints:
        etcd = local_etcd(store, port)
        endpoints = (etcd.client_url,)
        beside = [etcd_child(etcd, verbose=verbose)]
    with local_cluster(
        store, host, port, groups=groups, nodes=nodes, names=names, etcd_endpoints=endpoints
    ) as found:
        for node in found.nodes:
            node.ports.check(host)
        for each in found.names:
            Ports(each.port, each.port + 1, each.port + 1).check(host)
        asyncio.run(_dev(found, beside, verbose))


async def _dev(cluster: LocalCluster, beside: list[Child], verbose: bool) -> None:
    """Run a cluster. beside: what is started before its nodes, and stopped after them."""
    children = [node.children(verbose=verbose) for node in cluster.nodes]
    beside = [*beside, *(each.child(verbose=verbose) for each in cluster.names)]
    everyone = [*beside, *(child for of_node in children for child in of_node)]
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for signum in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(signum, stop.set)
    running = [asyncio.create_task(child.run(), name=child.name) for child in everyone]
    announcing = asyncio.create_task(_announce(cluster, everyone))
    stopping = asyncio.create_task(stop.wait())
    try:
        waiting = {*running, announcing, stopping}
        while stopping in waiting:
            done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
    finally:
        announcing.cancel()
        stopping.cancel()
        for same_service in zip(*children, strict=True):
            await asyncio.gather(*(child.stop() for child in same_service))
        await asyncio.gather(*(child.stop() for child in beside))
        await asyncio.gather(*running, announcing, stopping, return_exceptions=True)
    say("stopped")


class StartProgress:
    """Decides when to report what a long start is waiting for. Pure."""

    def __init__(self, started: float) -> None:
        self._next = started + REPORT_AFTER_S

    def is_due(self, now: float) -> bool:
        """Whether a report is due; if so, the next one is due REPORT_EVERY_S later."""
        if now < self._next:
            return False
        self._next = now + REPORT_EVERY_S
        return True


async def _announce(cluster: LocalCluster, children: Sequence[Child]) -> None:
    """Wait until all services are ready, then print the addresses and examples."""
    started = time.monotonic()
    progress = StartProgress(started)
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=2)) as session:
        for child in children:
            while (state := await _readiness(session, child.ready_url)) != READY:
                now = time.monotonic()
                if state is None and now - started > READY_TIMEOUT_S:
                    raise NotServing(
                        f"{child.name} does not answer at {child.ready_url} after "
                        f"{READY_TIMEOUT_S:.0f} s.",
                        "See its log lines above; another --port may help.",
                    )
                if state is not None and progress.is_due(now):
                    say(f"{child.name} is not ready yet: {state}")
                await asyncio.sleep(READY_POLL_S)
            child.was_ready = True
        masters = [
            await _all_in_sync(session, nodes, progress) if len(nodes) > 1 else nodes[0]
            for nodes in cluster.groups
        ]
    seconds = time.monotonic() - started
    if not cluster.is_plain:
        click.echo(cluster_greeting(cluster, masters, seconds))
    elif len(cluster.nodes) == 1:
        click.echo(greeting(masters[0], seconds))
    else:
        click.echo(group_greeting(cluster.nodes, masters[0], seconds))


async def _readiness(session: aiohttp.ClientSession, url: str) -> str | None:
    """Return READY, or the reason that the service gives, or None while it does not answer."""
    try:
        async with session.get(url) as response:
            if response.status == 200:
                return READY
            return not_ready(await response.read())
    except (aiohttp.ClientError, TimeoutError):
        return None


async def _all_in_sync(
    session: aiohttp.ClientSession, nodes: list[DevNode], progress: StartProgress
) -> DevNode:
    """Wait until there is a master and every node is in its in-sync set; return the master."""
    url = f"{nodes[0].api}/v1/cluster"
    while True:
        master, missing = await _master(session, url)
        if missing is None:
            return next(node for node in nodes if node.name == master)
        if progress.is_due(time.monotonic()):
            say(f"the group is not complete yet: {missing}")
        await asyncio.sleep(READY_POLL_S)


async def _master(session: aiohttp.ClientSession, url: str) -> tuple[str | None, str | None]:
    """Return the master's name and what the group still waits for; None if for nothing."""
    try:
        async with session.get(url, headers={"Accept": "application/json"}) as response:
            cluster: dict[str, Any] = await response.json()
    except (aiohttp.ClientError, TimeoutError, ValueError):
        return None, "no node answers"
    master: str | None = cluster.get("master")
    if master is None:
        return None, str(cluster.get("reason") or "there is no master")
    outside = [node["node"] for node in cluster["nodes"] if not node["in_sync"]]
    return master, f"{', '.join(outside)} not in sync" if outside else None


def not_ready(body: bytes) -> str:
    """Format the answer of /ready for a terminal: the reasons and the progress of recovery."""
    try:
        answer = json.loads(body)
        parts = [str(reason["detail"]) for reason in answer["reasons"]]
        recovery = answer.get("recovery", {})
        if recovery.get("total_bytes"):
            done = 100 * recovery["done_bytes"] // recovery["total_bytes"]
            eta_s = recovery["eta_seconds"]  # null until the speed is known
            left = "" if eta_s is None else f", about {eta_s:.0f} s left"
            parts.append(f"recovered {done} %{left}")
        return "; ".join(parts) or str(answer["state"])
    except (ValueError, KeyError, TypeError):
        return body[:200].decode("utf-8", "replace")


def greeting(node: DevNode, seconds: float) -> str:
    """Return the text that a new user can copy and paste from."""
    url, ports = node.api, node.ports
    return f"""\
Tidemark is ready after {seconds:.1f} s. Store: {node.store.resolve()}

  API      {url}/v1  (document: {url}/v1/openapi.json)
  probes   http://127.0.0.1:{ports.broker_admin}/ready  http://127.0.0.1:{ports.reput_admin}/ready
  metrics  the same two with /metrics

{_examples(url)}

Stop with Ctrl-C."""


def group_greeting(nodes: Sequence[DevNode], master: DevNode, seconds: float) -> str:
    """Return the same for a group: every node's addresses, and how to try a switchover."""
    url = nodes[0].api
    return f"""\
Tidemark is ready after {seconds:.1f} s: a group of {len(nodes)} nodes, {master.name} is the \
master. Stores: {nodes[0].store.resolve().parent}

{_places(nodes)}

{_examples(master.api)}

See which node is the master, and switch over to another (in a checkout: .venv/bin/tidemark):

  tidemark cluster status --url {url}
  tidemark cluster switchover --url {url}

Stop with Ctrl-C."""


def cluster_greeting(cluster: LocalCluster, masters: Sequence[DevNode], seconds: float) -> str:
    """Return the same for several broker groups, or for brokers with name services."""
    url = cluster.names[0].url if cluster.names else masters[0].api
    names = "".join(
        f"  {each.name}  {each.url}/v1/route  metrics http://{ADMIN_HOST}:{each.port + 1}/metrics\n"
        for each in cluster.names
    )
    leading = ", ".join(node.label or node.api for node in masters)
    return f"""\
Tidemark is ready after {seconds:.1f} s: {len(cluster.groups)} broker groups of \
{len(cluster.groups[0])} nodes, the masters are {leading}.

{_places(cluster.nodes)}
{names}
See where a topic is:

  curl -s {url}/v1/route/orders

{_examples(masters[0].api)}

Stop with Ctrl-C."""


def _places(nodes: Sequence[DevNode]) -> str:
    """Return a line with the addresses of each node."""
    return "\n".join(
        f"  {node.label}  API {node.api}/v1  metrics "
        + "  ".join(
            f"http://{ADMIN_HOST}:{port}/metrics"
            for port in (node.ports.broker_admin, node.ports.reput_admin, node.ports.ha_admin)
            if port is not None
        )
        for node in nodes
    )


def _examples(url: str) -> str:
    return f"""\
Send and read with curl:

  curl -s {url}/v1/topics/orders/messages -H 'Content-Type: application/json' \\
    -d '{{"messages": [{{"body_text": "hello", "tags": "new", "keys": ["order-1"]}}]}}'
  curl -s '{url}/v1/topics/orders/queues/0/messages?offset=0' -H 'Accept: application/json'

or from Python (in a checkout: .venv/bin/python -m asyncio):

  import tidemark
  async with tidemark.connect("{url}") as mq:
      await mq.send("orders", b"hello", tags="new", keys=["order-1"])
      print(await mq.messages_by_key("orders", "order-1"))"""
