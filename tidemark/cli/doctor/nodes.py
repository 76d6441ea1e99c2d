"""The nodes, as they are seen from here: who answers at which address, as what, since when.

Any node tells the addresses of all; each is then called back. A node that can be reached by the
others and not from here is the commonest trouble of all: clients are told these addresses.
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
from tidemark.cli.doctor.findings import Check, Finding, Level, unknown
from tidemark.cli.doctor.roles import roles
from tidemark.client.transport import reason_of

CALL_S: Final = 3.0
SKEW_MAX_S: Final = 2.0
"""Two of a date header's seconds: less cannot be told by it."""
SKEW_ERROR_S: Final = 30.0
ANSWER_SIZE_MAX: Final = 4 << 20


class Told(NamedTuple):
    """What one address answered."""

    url: str
    view: Mapping[str, Any] | None
    """The body of ``GET /v1/cluster``; None if there was none."""
    problem: str
    """Why there is none; "" if there is one."""
    version: str | None
    skew_s: float | None
    """How far its clock is ahead of ours; None if it does not say."""


def checks(urls: Sequence[str]) -> list[Check]:
    """One check: nodes are asked side by side, and compared with each other."""
    return [Check("nodes", ", ".join(urls), lambda: asyncio.run(look(urls)))]


async def look(urls: Sequence[str]) -> list[Finding]:
    """All findings about the nodes that these addresses lead to."""
    timeout = aiohttp.ClientTimeout(total=CALL_S)
    headers = {"Accept": "application/json"}
    async with aiohttp.ClientSession(timeout=timeout, headers=headers) as session:
        first = await asyncio.gather(*(ask(session, url) for url in urls))
        view = next((told.view for told in first if told.view is not None), None)
        if view is None:
            return [_unreachable("nodes.api", told.url, told.url, told.problem) for told in first]
        named = {
            str(node["node"]): (str(node["api"]).rstrip("/"), str(node["admin"]).rstrip("/"))
            for told in first
            if told.view is not None
            for node in told.view["nodes"]
        }
        apis = await asyncio.gather(*(ask(session, api) for api, _ in named.values()))
        lives = await asyncio.gather(*(_live(session, admin) for _, admin in named.values()))
    found = [
        _unreachable("nodes.given", told.url, told.url, told.problem)
        for told in first
        if told.view is None
    ]
    by_name = dict(zip(named, apis, strict=True))
    for (name, (_, admin)), told, problem in zip(named.items(), apis, lives, strict=True):
        found.append(_api_of(name, told))
        found.append(_admin_of(name, admin, problem))
    everyone = by_name or {told.url: told for told in first if told.view is not None}
    found += [_clock_of(name, told) for name, told in everyone.items() if told.view is not None]
    found.append(_versions({n: t.version for n, t in everyone.items() if t.view is not None}))
    answering = {name: each.view for name, each in by_name.items() if each.view is not None}
    return [*found, *roles([*named], answering)] if named else [*found, _alone(view)]


async def ask(session: aiohttp.ClientSession, url: str) -> Told:
    """What a node says of its group, its version and the time."""
    try:
        async with asyncio.timeout(CALL_S):
            before = time.time()
            async with session.get(f"{url}/v1/cluster") as response:
                after = time.time()
                body = json.loads(await read_bounded(response, ANSWER_SIZE_MAX))
                date = response.headers.get("Date")
            if not isinstance(body, dict) or not isinstance(body.get("nodes"), list):
                return Told(url, None, "what answers is no node of ours", None, None)
            async with session.get(f"{url}/v1/openapi.json") as response:
                document = json.loads(await read_bounded(response, ANSWER_SIZE_MAX))
    except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
        return Told(url, None, await _why(url, error), None, None)
    info = document.get("info") if isinstance(document, dict) else None
    version = info.get("version") if isinstance(info, dict) else None
    return Told(url, body, "", version, skew(date, before, after))


def skew(date: str | None, before: float, after: float) -> float | None:
    """How far a clock is ahead, by the date in its answer; 0 where that is within its precision.

    date: in whole seconds, cut off. before, after: our wall clock around the call, in seconds.
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
    high = low + 1.0  # it was somewhere within that second, somewhere between before and after
    if high < before:
        return high - before
    return low - after if low > after else 0.0


def own_names(view: Mapping[str, Any]) -> set[str]:
    """Which nodes the answer may be from: it has seen itself no time ago, the others some."""
    nodes = view["nodes"]
    if len(nodes) == 1:
        return {str(nodes[0].get("node"))}
    return {str(node.get("node")) for node in nodes if node.get("seen_ms_ago") == 0}


def _api_of(name: str, told: Told) -> Finding:
    """Whether the address that clients are told leads to that node."""
    if told.view is None:
        return _unreachable("nodes.api", name, told.url, told.problem)
    owns = own_names(told.view)
    if name not in owns:
        return Finding(
            "nodes.api",
            Level.ERROR,
            name,
            f"{told.url} is advertised for {name}, and there answers "
            + (" or ".join(sorted(owns)) or "a node that is alone"),
            value=", ".join(sorted(owns)),
            limit=name,
            code="doctor-wrong-node",
            remedy="Correct cluster.api: one address leads to one node, never to a balancer.",
        )
    return Finding("nodes.api", Level.OK, name, f"{told.url} leads to {name}")


def _admin_of(name: str, url: str, problem: str) -> Finding:
    if problem:
        finding = _unreachable("nodes.admin", name, url, problem)
        return finding._replace(
            level=Level.WARNING,
            remedy="Commands of `tidemark cluster` need it; clients do not. " + finding.remedy,
        )
    return Finding("nodes.admin", Level.OK, name, f"{url} answers")


def _clock_of(name: str, told: Told) -> Finding:
    if told.skew_s is None:
        return unknown("nodes.clock", name, f"{told.url} does not say what time it is")
    finding = Finding(
        "nodes.clock",
        Level.ERROR if abs(told.skew_s) > SKEW_ERROR_S else Level.WARNING,
        name,
        f"its clock is {abs(told.skew_s):.1f} s {'ahead of' if told.skew_s > 0 else 'behind'} ours",
        value=round(told.skew_s, 1),
        limit=SKEW_MAX_S,
        unit="s",
        code="doctor-clock-wrong",
        remedy="Synchronise both machines' clocks: delays and retention are off by as much.",
    )
    if abs(told.skew_s) > SKEW_MAX_S:
        return finding
    cause = f"its clock is ours, to within {SKEW_MAX_S:.0f} s"
    return finding._replace(level=Level.OK, code="", remedy="", cause=cause)


def _versions(versions: Mapping[str, str | None]) -> Finding:
    """Whether all run what we are: neighbouring versions work together, others were not tested."""
    shown = ", ".join(f"{name} {version or 'unknown'}" for name, version in versions.items())
    if None in versions.values():
        return unknown("nodes.version", shown, "a node does not say its version")
    known = {str(version) for version in versions.values()} | {__version__}
    if len(known) == 1:
        return Finding("nodes.version", Level.OK, shown, f"all run {__version__}", __version__)
    return Finding(
        "nodes.version",
        Level.WARNING,
        shown,
        f"versions differ; this command line is {__version__}",
        value=", ".join(sorted(known)),
        limit=__version__,
        code="doctor-versions-differ",
        remedy="Finish the update; while it runs, nodes may be one version apart.",
    )


def _alone(view: Mapping[str, Any]) -> Finding:
    return Finding("nodes.master", Level.OK, "the node", str(view.get("reason") or "it is alone"))


def _unreachable(check: str, subject: str, url: str, problem: str) -> Finding:
    return Finding(
        check,
        Level.ERROR,
        subject,
        f"{url} cannot be reached from here ({socket.gethostname()}): {problem}",
        value=url,
        code="doctor-unreachable",
        remedy="Clients of this network cannot reach the node either: correct cluster.api, the "
        "name service or the firewall; or run this where clients run.",
    )


async def _live(session: aiohttp.ClientSession, url: str) -> str:
    """Why an admin port does not answer; "" if it does."""
    try:
        async with session.get(f"{url}/live") as response:
            return "" if response.status == 200 else f"/live says {response.status}"
    except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
        return await _why(url, error)


async def _why(url: str, error: Exception) -> str:
    """A sentence: the name, the port or the time."""
    host = urlsplit(url).hostname or ""
    if isinstance(error, TimeoutError):
        return f"no answer within {CALL_S:.0f} s"
    try:
        async with asyncio.timeout(CALL_S):
            await asyncio.get_running_loop().getaddrinfo(host, None)
    except (OSError, TimeoutError, UnicodeError):
        return f"the name {host} is not known here"
    return reason_of(error)
