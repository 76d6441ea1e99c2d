"""Checks name services, as seen from here, and whether they know the brokers that are examined.

Their URLs come from the settings of a broker or a name service, and from the routes that the given
nodes answer. A broker's route has what should be registered.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import aiohttp
import msgspec

from shared.cluster.routes import Route, RouteGroup
from shared.cluster.signature import SKEW_MAX_MS
from tidemark.cli.bounded_answer import read_bounded
from tidemark.cli.doctor import machine
from tidemark.cli.doctor.findings import About, Check, Finding, Level
from tidemark.cli.doctor.nodes import SKEW_MAX_S, skew
from tidemark.cli.doctor.ports import LOCAL_OF_ANY
from tidemark.client.transport import reason_of

CALL_S: Final = 3.0
ANSWER_SIZE_MAX: Final = 16 << 20
SKEW_ERROR_S: Final = SKEW_MAX_MS / 1000
USED_MAX: Final = 0.8
"""Share of a bound, as in the alert TidemarkNamesNearBound."""
LOCAL_HOSTS: Final = frozenset({"127.0.0.1", "localhost", "::1"})
_USED: Final = re.compile(r'^tidemark_names_bound_used_ratio\{bound="(\w+)"\} (\S+)$', re.MULTILINE)
_REFUSED: Final = re.compile(
    r'^tidemark_broker_names_refused_total\{code="([\w-]+)"\} (\S+)$', re.MULTILINE
)


class Answer(NamedTuple):
    """The answer of one address to ``GET /v1/route``."""

    url: str
    route: Route | None
    """None if there was no valid answer."""
    problem: str = ""
    skew_s: float | None = None
    """How far its clock is ahead of the local clock; None if its answer has no date."""


class Subject(NamedTuple):
    """What is examined."""

    listed: frozenset[str]
    """URLs of name services in the settings."""
    given: tuple[str, ...]
    """Addresses of brokers or name services, which have the URLs of others in their routes."""
    cluster: str | None
    """Name in the settings; None: that of the first route."""
    expected: frozenset[str]
    """The setting ``groups`` of a name service."""
    needed: bool
    """Whether one of them should run: a broker was asked for, or is to register."""
    broker_admin: str | None
    """Admin URL of the local broker, which counts refusals; None: there is none."""


def checks(settings: Mapping[str, Mapping[str, Any]], urls: Sequence[str]) -> list[Check]:
    """Return the checks of name services; those that run are asked together and compared.

    settings: of each service whose settings are known. urls: given nodes or name services.
    """
    names, broker = settings.get("names"), settings.get("broker")
    found = []
    if names is not None:
        own, admin = _local(names), _local(names, "admin_")
        found.append(Check("limits.files", "names", lambda: [machine.connections(names)]))
        found.append(Check("names.secret", own, lambda: [secret(names)]))
        found.append(Check("names.bounds", admin, lambda: asyncio.run(bounds(admin))))
    subject = subject_of(names, broker, urls)
    if subject.listed or subject.given:
        at = ", ".join(sorted(subject.listed) or subject.given)
        found.append(Check("names", at, lambda: asyncio.run(check_names(subject))))
    return found


def subject_of(
    names: Mapping[str, Any] | None, broker: Mapping[str, Any] | None, urls: Sequence[str]
) -> Subject:
    """Return what the settings and the given addresses say."""
    registering = broker if broker is not None and broker["names"]["urls"] else None
    listed = [] if registering is None else [*registering["names"]["urls"]]
    own = [] if registering is None else [_local(registering)]
    cluster = None if registering is None else registering["cluster"]["name"]
    if names is not None:
        listed += names["peers"]
        own.append(_local(names))
        cluster = names["cluster"]
    return Subject(
        frozenset(url.rstrip("/") for url in listed),
        (*urls, *own),
        cluster,
        frozenset([] if names is None else names["groups"]),
        needed=bool(urls) or registering is not None,
        broker_admin=None if registering is None else _local(registering, "admin_"),
    )


def secret(names: Mapping[str, Any]) -> Finding:
    """Check that a name service that others reach has a secret. ``--check-config`` has read it."""
    host, path = str(names["host"]), names["secret_file"]
    finding = About("names.secret", f"{host}:{names['port']}").warning(
        "doctor-names-open",
        "there is no secret_file: everybody who reaches the port can register a broker",
        "Give all brokers and name services of the cluster one secret, or close the port.",
    )
    return finding.unless(
        path is not None or host in LOCAL_HOSTS,
        "registrations must be signed" if path is not None else "only this machine reaches it",
    )


async def bounds(admin: str) -> list[Finding]:
    """Check how much of each bound a running name service uses. admin: URL of its admin port."""
    text = await _metrics(admin)
    used = {bound: float(share) for bound, share in _USED.findall(text)}
    if not used:
        return [About("names.bounds", admin).unknown("no name service answers there")]
    return [
        About("names.bounds", bound)
        .warning(
            "names-limit",
            f"{100 * share:.0f} % of {bound} are used",
            f"Remove what is not needed, or raise {bound} of all name services.",
            value=round(100 * share, 1),
            limit=100 * USED_MAX,
            unit="percent",
        )
        .unless(share <= USED_MAX)
        for bound, share in used.items()
    ]


async def check_names(subject: Subject) -> list[Finding]:
    """Return all findings about the name services; none if there are none."""
    timeout = aiohttp.ClientTimeout(total=CALL_S)
    headers = {"Accept": "application/json"}
    async with aiohttp.ClientSession(timeout=timeout, headers=headers) as session:
        sources = await asyncio.gather(*(ask(session, url) for url in subject.given))
        routes = [each.route for each in sources if each.route is not None]
        urls = subject.listed.union(url.rstrip("/") for route in routes for url in route.names)
        answers = await asyncio.gather(*(ask(session, url) for url in sorted(urls)))
    refusals = "" if subject.broker_admin is None else refused(await _metrics(subject.broker_admin))
    return [*findings(subject, answers), *registered(routes, answers, refusals)]


def findings(subject: Subject, answers: Sequence[Answer]) -> list[Finding]:
    """Return what the answers of all name services mean."""
    answering = [each for each in answers if each.route is not None]
    level = Level.ERROR if subject.needed and not answering else Level.WARNING
    found = [_reached(each, level) for each in answers]
    routes = {each.url: each.route for each in answering if each.route is not None}
    cluster = subject.cluster or next((route.cluster for route in routes.values()), "")
    for url, route in routes.items():
        found += [_of_cluster(url, route, cluster), _complete(url, route)]
        found += _unexpected(url, route, subject.expected)
    found += [_clock(each) for each in answering]
    return [*found, *_lists(routes)]


def registered(
    routes: Sequence[Route], answers: Sequence[Answer], refusals: str
) -> Iterator[Finding]:
    """Yield whether each name service that answers knows the nodes and masters of these routes.

    A name service that gave the same route itself is left out. refusals: why the local broker was
    refused, if it was.
    """
    for route in routes:
        for group in route.groups:
            for answer in answers:
                if answer.route is not None and answer.route.version != route.version:
                    yield _registered(group, answer.url, answer.route, refusals)


def _registered(group: RouteGroup, url: str, route: Route, refusals: str) -> Finding:
    known = next((each for each in route.groups if each.group == group.group), None)
    places = set() if known is None else {(n.node, n.api.rstrip("/")) for n in known.nodes}
    missing = [
        node.node
        for node in group.nodes
        if node.role != "unknown" and (node.node, node.api.rstrip("/")) not in places
    ]
    at = About("names.registered", f"{group.group} at {url}")
    remedy = "`names-refused` in the broker's log has the reason; it registers every 30 s."
    if missing:
        cause = f"{', '.join(missing)} of broker group {group.group} is not registered there"
        return at.error("doctor-not-registered", cause + refusals, remedy)
    master = None if known is None else known.master
    finding = at.error(
        "doctor-not-registered",
        f"the master of broker group {group.group} is {group.master}, and {master or 'none'} is "
        f"registered there{refusals}",
        remedy,
    )
    return finding.unless(
        group.master in (None, master), f"all nodes of broker group {group.group} are registered"
    )


def refused(metrics: str) -> str:
    """Return how often the local broker was refused, by code; empty if it never was."""
    counts = Counter({code: round(float(count)) for code, count in _REFUSED.findall(metrics)})
    shown = ", ".join(f"{code} {count} times" for code, count in counts.most_common() if count)
    return f"; the local broker was refused: {shown}" if shown else ""


def _reached(answer: Answer, level: Level) -> Finding:
    finding = About("names.api", answer.url).found(
        level,
        "doctor-names-unreachable",
        f"no answer of a name service: {answer.problem}",
        "Start it, or correct names.urls of the brokers and peers of the name services.",
    )
    return finding.unless(answer.route is not None, "a name service answers")


def _of_cluster(url: str, route: Route, cluster: str) -> Finding:
    finding = About("names.cluster", url).error(
        "wrong-cluster",
        f"it belongs to cluster {route.cluster}, not {cluster}",
        "Correct cluster.name, or the URL.",
        value=route.cluster,
        limit=cluster,
    )
    return finding.unless(route.cluster == cluster, f"it belongs to cluster {cluster}")


def _complete(url: str, route: Route) -> Finding:
    missing = ", ".join(route.missing) or "it has just started"
    finding = About("names.complete", url).warning(
        "route-incomplete",
        f"it does not know all broker groups: {missing}",
        "Start their nodes, or remove broker groups that are gone for good from `groups`.",
        value=len(route.missing),
        limit=0,
        unit="broker groups missing",
    )
    return finding.unless(route.complete, f"it knows {len(route.groups)} broker groups")


def _unexpected(url: str, route: Route, expected: Collection[str]) -> Iterator[Finding]:
    """Yield the broker groups that are missing in the setting ``groups``, if that has any."""
    others = sorted({each.group for each in route.groups}.difference(expected))
    if expected and others:
        yield About("names.groups", url).warning(
            "doctor-names-groups",
            f"{', '.join(others)} registered, and the setting groups does not have it",
            "Add it to `groups` of every name service: otherwise answers are complete without it, "
            "and keys move to other broker groups while it is down.",
        )


def _clock(answer: Answer) -> Finding:
    at = About("names.clock", answer.url)
    if answer.skew_s is None:
        return at.unknown("its answer has no date")
    finding = at.found(
        Level.ERROR if abs(answer.skew_s) > SKEW_ERROR_S else Level.WARNING,
        "doctor-clock-wrong",
        f"its clock is {abs(answer.skew_s):.1f} s "
        f"{'ahead of' if answer.skew_s > 0 else 'behind'} the local clock",
        f"Synchronise both machines' clocks: signed registrations are refused beyond "
        f"{SKEW_ERROR_S:.0f} s.",
        value=round(answer.skew_s, 1),
        limit=SKEW_MAX_S,
        unit="s",
    )
    return finding.unless(abs(answer.skew_s) <= SKEW_MAX_S, "its clock agrees with the local clock")


def _lists(routes: Mapping[str, Route]) -> Iterator[Finding]:
    """Yield whether all name services list the same ones to clients."""
    lists = {url: sorted(each.rstrip("/") for each in route.names) for url, route in routes.items()}
    if len(lists) < 2:
        return
    finding = About("names.peers", ", ".join(lists)).warning(
        "doctor-names-differ",
        "name services list different ones: "
        + "; ".join(f"{url} has {', '.join(names)}" for url, names in lists.items()),
        "Give each of them the URLs of all others in `peers`, as clients reach them.",
    )
    yield finding.unless(len({tuple(each) for each in lists.values()}) == 1, "all list the same")


async def ask(session: aiohttp.ClientSession, url: str) -> Answer:
    """Ask for all broker groups."""
    try:
        before = time.time()
        async with session.get(f"{url}/v1/route") as response:
            after = time.time()
            body = await read_bounded(response, ANSWER_SIZE_MAX)
            date = response.headers.get("Date")
        route = msgspec.json.decode(body, type=Route)
    except TimeoutError:
        return Answer(url, None, f"no answer within {CALL_S:.0f} s")
    except (aiohttp.ClientError, OSError) as error:
        return Answer(url, None, reason_of(error))
    except msgspec.DecodeError:
        return Answer(url, None, "what answers there is no name service")
    return Answer(url, route, skew_s=skew(date, before, after))


async def _metrics(admin: str) -> str:
    """Return the metrics of a process; empty if it does not answer."""
    timeout = aiohttp.ClientTimeout(total=CALL_S)
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            session.get(f"{admin}/metrics") as response,
        ):
            return (await read_bounded(response, ANSWER_SIZE_MAX)).decode(errors="replace")
    except (aiohttp.ClientError, OSError, TimeoutError):
        return ""


def _local(settings: Mapping[str, Any], port: str = "") -> str:
    """Return the URL of a service on this machine. port: ``admin_`` for its admin port."""
    host = LOCAL_OF_ANY.get(settings[f"{port}host"], settings[f"{port}host"])
    return f"http://{f'[{host}]' if ':' in host else host}:{settings[f'{port}port']}"
