"""Checks the nodes as seen from here: addresses, identities, clocks and versions.

Any node reports the addresses of all; each address is then called. The commonest problem is a node
that the other nodes reach and clients do not, because clients use these addresses.
"""

from __future__ import annotations

import asyncio
import email.utils
import json
import socket
import time
from collections.abc import Mapping, Sequence
from datetime import UTC
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

import aiohttp

from tidemark import __version__
from tidemark.cli.bounded_answer import read_bounded
from tidemark.cli.doctor.findings import About, Check, Finding, Level
from tidemark.cli.doctor.roles import roles
from tidemark.client.transport import reason_of
from tidemark.errors import UnknownCall

CALL_S: Final = 3.0
SKEW_MAX_S: Final = 2.0
"""Twice the resolution of a Date header: smaller differences cannot be measured with it."""
SKEW_ERROR_S: Final = 30.0
ANSWER_SIZE_MAX: Final = 4 << 20


NAME_SERVICE: Final = "it is a name service"


class NodeAnswer(NamedTuple):
    """The answer from one address."""

    url: str
    view: Mapping[str, Any] | None
    """The body of ``GET /v1/cluster``; None if there was no valid answer."""
    problem: str
    """Why there is no view; "" if there is one."""
    version: str | None
    skew_s: float | None
    """How far its clock is ahead of the local clock; None if its answer has no date."""


def checks(urls: Sequence[str]) -> list[Check]:
    """Return one check: nodes are queried in parallel and compared with each other."""
    return [Check("nodes", ", ".join(urls), lambda: asyncio.run(check_nodes(urls)))]


async def check_nodes(urls: Sequence[str]) -> list[Finding]:
    """Return all findings about the nodes at these addresses."""
    timeout = aiohttp.ClientTimeout(total=CALL_S)
    headers = {"Accept": "application/json"}
    async with aiohttp.ClientSession(timeout=timeout, headers=headers) as session:
        asked = await asyncio.gather(*(ask(session, url) for url in urls))
        first = [answer for answer in asked if answer.problem != NAME_SERVICE]
        view = next((answer.view for answer in first if answer.view is not None), None)
        if view is None:
            return [
                _unreachable("nodes.api", answer.url, answer.url, answer.problem)
                for answer in first
            ]
        named = {
            str(node["node"]): (str(node["api"]).rstrip("/"), str(node["admin"]).rstrip("/"))
            for answer in first
            if answer.view is not None
            for node in answer.view["nodes"]
        }
        apis = await asyncio.gather(*(ask(session, api) for api, _ in named.values()))
        lives = await asyncio.gather(*(_live(session, admin) for _, admin in named.values()))
    found = [
        _unreachable("nodes.given", answer.url, answer.url, answer.problem)
        for answer in first
        if answer.view is None
    ]
    found += [_removed(answer) for answer in first if _is_removed(answer)]
    by_name = dict(zip(named, apis, strict=True))
    for (name, (_, admin)), answer, problem in zip(named.items(), apis, lives, strict=True):
        found.append(_api_of(name, answer))
        found.append(_admin_of(name, admin, problem))
    everyone = by_name or {answer.url: answer for answer in first if answer.view is not None}
    found += [
        _clock_of(name, answer) for name, answer in everyone.items() if answer.view is not None
    ]
    found.append(_versions({n: t.version for n, t in everyone.items() if t.view is not None}))
    answering = {name: each.view for name, each in by_name.items() if each.view is not None}
    return [*found, *roles([*named], answering)] if named else [*found, _alone(view)]


async def ask(session: aiohttp.ClientSession, url: str) -> NodeAnswer:
    """Query a node's view of its group, its version and its time."""
    try:
        async with asyncio.timeout(CALL_S):
            before = time.time()
            async with session.get(f"{url}/v1/cluster") as response:
                after = time.time()
                body = json.loads(await read_bounded(response, ANSWER_SIZE_MAX))
                date = response.headers.get("Date")
            if isinstance(body, dict) and body.get("code") == UnknownCall.code:
                return NodeAnswer(url, None, NAME_SERVICE, None, None)
            if not isinstance(body, dict) or not isinstance(body.get("nodes"), list):
                return NodeAnswer(
                    url, None, "the answer is not that of a Tidemark node", None, None
                )
            async with session.get(f"{url}/v1/openapi.json") as response:
                document = json.loads(await read_bounded(response, ANSWER_SIZE_MAX))
    except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
        return NodeAnswer(url, None, await _why(url, error), None, None)
    info = document.get("info") if isinstance(document, dict) else None
    version = info.get("version") if isinstance(info, dict) else None
    return NodeAnswer(url, body, "", version, skew(date, before, after))


def skew(date: str | None, before: float, after: float) -> float | None:
    """Return how far a clock is ahead, by the date of its answer; 0 if within its precision.

    date: in whole seconds, truncated. before, after: our wall clock around the call, in seconds.
    """
    if date is None:
        return None
    try:
        theirs = email.utils.parsedate_to_datetime(date)
    except ValueError:
        return None
    if theirs.tzinfo is None:
        theirs = theirs.replace(tzinfo=UTC)
    low = theirs.timestamp()
    high = low + 1.0  # the answer was made within that second, and between before and after
    if high < before:
        return high - before
    return low - after if low > after else 0.0


def own_names(view: Mapping[str, Any]) -> set[str]:
    """Names of the nodes of a view that may have answered: a node reports that it saw itself 0 ms
    ago."""
    nodes = view["nodes"]
    if len(nodes) == 1:
        return {str(nodes[0].get("node"))}
    return {str(node.get("node")) for node in nodes if node.get("seen_ms_ago") == 0}


def _is_removed(answer: NodeAnswer) -> bool:
    """Whether the node that answers was removed from its group, or not added yet."""
    alarms = () if answer.view is None else answer.view.get("alarms", ())
    return any(alarm["code"] == "removed-node" for alarm in alarms)


def _removed(answer: NodeAnswer) -> Finding:
    return About("nodes.removed", answer.url).error(
        "doctor-removed-node",
        f"the node at {answer.url} is not a node of its group: it copies nothing",
        "Stop its services, or add it again with `tidemark cluster add-node`.",
    )


def _api_of(name: str, answer: NodeAnswer) -> Finding:
    """Check that the address that is advertised to clients leads to that node."""
    at = About("nodes.api", name)
    if answer.view is None:
        return _unreachable("nodes.api", name, answer.url, answer.problem)
    owns = own_names(answer.view)
    if name not in owns:
        return at.error(
            "doctor-wrong-node",
            f"{answer.url} is advertised for {name}, but the node that answers is "
            + (" or ".join(sorted(owns)) or "in no group"),
            "Correct cluster.api: one address leads to one node, never to a load balancer.",
            value=", ".join(sorted(owns)),
            limit=name,
        )
    return at.ok(f"{answer.url} leads to {name}")


def _admin_of(name: str, url: str, problem: str) -> Finding:
    if problem:
        finding = _unreachable("nodes.admin", name, url, problem)
        return finding._replace(
            level=Level.WARNING,
            remedy="`tidemark cluster` commands need it; clients do not. " + finding.remedy,
        )
    return About("nodes.admin", name).ok(f"{url} answers")


def _clock_of(name: str, answer: NodeAnswer) -> Finding:
    at = About("nodes.clock", name)
    if answer.skew_s is None:
        return at.unknown(f"the answer of {answer.url} has no date")
    finding = at.found(
        Level.ERROR if abs(answer.skew_s) > SKEW_ERROR_S else Level.WARNING,
        "doctor-clock-wrong",
        f"its clock is {abs(answer.skew_s):.1f} s "
        f"{'ahead of' if answer.skew_s > 0 else 'behind'} the local clock",
        "Synchronise both machines' clocks: delays and retention are off by as much.",
        value=round(answer.skew_s, 1),
        limit=SKEW_MAX_S,
        unit="s",
    )
    return finding.unless(
        abs(answer.skew_s) <= SKEW_MAX_S,
        f"its clock agrees with the local clock within {SKEW_MAX_S:.0f} s",
    )


def _versions(versions: Mapping[str, str | None]) -> Finding:
    """Check that all nodes have the local version: only adjacent versions are tested together."""
    shown = ", ".join(f"{name} {version or 'unknown'}" for name, version in versions.items())
    if None in versions.values():
        return About("nodes.version", shown).unknown("a node does not report its version")
    known = {str(version) for version in versions.values()} | {__version__}
    if len(known) == 1:
        return About("nodes.version", shown).ok(f"all run {__version__}", value=__version__)
    return About("nodes.version", shown).warning(
        "doctor-versions-differ",
        f"versions differ; this command line is {__version__}",
        "Finish the upgrade; until then, nodes may be one version apart.",
        value=", ".join(sorted(known)),
        limit=__version__,
    )


def _alone(view: Mapping[str, Any]) -> Finding:
    return About("nodes.master", "the node").ok(str(view.get("reason") or "it is alone"))


def _unreachable(check: str, subject: str, url: str, problem: str) -> Finding:
    return About(check, subject).error(
        "doctor-unreachable",
        f"{url} cannot be reached from here ({socket.gethostname()}): {problem}",
        "Clients in this network cannot reach the node either: correct cluster.api, DNS or "
        "the firewall; or run this command where clients run.",
        value=url,
    )


async def _live(session: aiohttp.ClientSession, url: str) -> str:
    """Return why an admin port does not answer; "" if it does."""
    try:
        async with session.get(f"{url}/live") as response:
            return "" if response.status == 200 else f"/live answers {response.status}"
    except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
        return await _why(url, error)


async def _why(url: str, error: Exception) -> str:
    """Describe a failed call: the name, the port or the timeout."""
    host = urlsplit(url).hostname or ""
    if isinstance(error, TimeoutError):
        return f"no answer within {CALL_S:.0f} s"
    try:
        async with asyncio.timeout(CALL_S):
            await asyncio.get_running_loop().getaddrinfo(host, None)
    except (OSError, TimeoutError, UnicodeError):
        return f"the name {host} cannot be resolved here"
    return reason_of(error)
