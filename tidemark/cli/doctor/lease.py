"""Checks the etcd of the lease, as seen from here: each endpoint, its leader, one cluster."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import aiohttp

from shared.cluster.config import ClusterConfig
from shared.cluster.etcd_tls import etcd_tls
from tidemark.cli.doctor.findings import About, Check, Finding
from tidemark.client.transport import reason_of
from tidemark.errors import BadConfig

CALL_S: Final = 3.0
CHECK: Final = "lease.etcd"


class _Member(NamedTuple):
    """The answer of one endpoint."""

    endpoint: str
    status: Mapping[str, Any]
    """Empty if there was no valid answer."""
    problem: str = ""


def checks(settings: Mapping[str, Any]) -> list[Check]:
    """Return the check of the endpoints of these settings; none if the lease is elsewhere."""
    cluster = settings.get("cluster") or {}
    endpoints = tuple(cluster.get("etcd_endpoints") or ())
    if not endpoints:
        return []
    ca, certificate, key = (
        Path(cluster[name]) if cluster.get(name) else None
        for name in ("etcd_tls_ca_file", "etcd_tls_cert_file", "etcd_tls_key_file")
    )
    config = ClusterConfig(
        etcd_endpoints=endpoints,
        etcd_tls_ca_file=ca,
        etcd_tls_cert_file=certificate,
        etcd_tls_key_file=key,
    )

    def work() -> list[Finding]:
        try:
            tls = etcd_tls(config)
        except BadConfig as error:
            return [About(CHECK, "TLS").error(error.code, error.detail, error.advice)]
        return findings(asyncio.run(_asked(endpoints, tls)))

    return [Check(CHECK, ", ".join(endpoints), work)]


def findings(members: list[_Member]) -> list[Finding]:
    """Return what the answers of all endpoints mean."""
    found = [_of(member) for member in members]
    ids = {str(member.status["header"]["cluster_id"]) for member in members if member.status}
    if len(ids) > 1:
        endpoints = ", ".join(member.endpoint for member in members)
        found.append(
            About(CHECK, endpoints).error(
                "doctor-etcd-clusters",
                f"the endpoints belong to {len(ids)} etcd clusters",
                "Name members of one cluster in cluster.etcd_endpoints: each of several would "
                "have a lease of its own.",
                value=len(ids),
                limit=1,
                unit="clusters",
            )
        )
    return found


def _of(member: _Member) -> Finding:
    about = About(CHECK, member.endpoint)
    if not member.status:
        return about.error(
            "doctor-etcd-unreachable",
            f"no answer of etcd: {member.problem}",
            "Start that member, or correct cluster.etcd_endpoints and the etcd_tls_ settings.",
        )
    if str(member.status.get("leader") or "0") == "0":
        return about.error(
            "doctor-etcd-leaderless",
            "it has no leader, so no node can take or renew the lease",
            "Start or connect more than half of the members of etcd.",
        )
    return about.ok(f"etcd {member.status.get('version')} with a leader")


async def _asked(endpoints: tuple[str, ...], tls: ssl.SSLContext | None) -> list[_Member]:
    timeout = aiohttp.ClientTimeout(total=CALL_S)
    async with aiohttp.ClientSession(timeout=timeout) as session:
        return await asyncio.gather(*(_ask(session, each, tls) for each in endpoints))


async def _ask(
    session: aiohttp.ClientSession, endpoint: str, tls: ssl.SSLContext | None
) -> _Member:
    """Ask one member for its status, which needs no user."""
    url = f"{endpoint}/v3/maintenance/status"
    try:
        async with session.post(url, json={}, ssl=tls or True) as response:
            status = await response.json(content_type=None)
    except (aiohttp.ClientError, OSError, ValueError) as error:
        return _Member(endpoint, {}, reason_of(error))
    if not isinstance(status, dict) or "cluster_id" not in (status.get("header") or {}):
        return _Member(endpoint, {}, f"status {response.status}, not that of etcd's JSON gateway")
    return _Member(endpoint, status)
