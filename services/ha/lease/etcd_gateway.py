"""Calls of etcd over its JSON gateway: endpoints in turn, authentication, reasons of failures.

Every member of an etcd cluster serves the gateway at its client port. A call goes to the endpoint
that answered last. If that one cannot be reached, or has no leader, the call goes to the next one.
An endpoint that is silent uses up the time-out, and the next call begins at another one.

A call may so be sent twice. For a read that makes no difference. A transaction names the version
that it replaces, so only the first one is applied; if that was the one without an answer, the other
one is refused, and the session's next read shows its own write.

- ``hasleader``: a member without a leader answers at once, not after 7 s.
- The token of a user is simple by default: a restart of etcd forgets it. It is requested again.
- The id of the etcd cluster is remembered. 1. Two independent etcds are configured as endpoints. 2.
  The one with the lease is unreachable. 3. The other one has no lease, or an old one. Without the
  check a master would create a second lease, while other nodes go on with the first.
"""

from __future__ import annotations

import json
import ssl
from pathlib import Path
from typing import Any, Final, NamedTuple

import aiohttp

from shared.runtime import connection_errors

MORE_ATTEMPTS: Final = 2
"""After a restart of etcd: its end of a kept connection is closed, and it forgot the token."""
MESSAGE_SIZE_MAX: Final = 200
"""Maximum number of characters of a server's message that a reason quotes."""
HAS_LEADER: Final = {"Grpc-Metadata-hasleader": "true"}
DEADLINE_EXCEEDED, FAILED_PRECONDITION, UNAVAILABLE, UNAUTHENTICATED = 4, 9, 14, 16
"""Codes of gRPC (google/rpc/code.proto)."""
OLD_TOKEN: Final = "etcdserver: revision of auth store is old"
REMEDIES: Final = {
    "user name is empty": "set `cluster.etcd_user` and `cluster.etcd_password_file`",
    "authentication failed, invalid user ID or password": "correct `cluster.etcd_user`, or the "
    "password in `cluster.etcd_password_file`",
    "permission denied": "grant the user a role that may read and write `cluster.etcd_prefix`",
    "no leader": "start its members, or connect them: it needs more than half of them",
    "request timed out": "see which of its members are down or cut off",
    "mvcc: database space exceeded": "compact and defragment it, then disarm its alarm NOSPACE",
}
"""What to do, by etcd's message."""


class EtcdFailed(Exception):
    """The outcome of a call is unknown; the message is the reason and the remedy."""


class Login(NamedTuple):
    """The user of etcd's authentication."""

    user: str
    password_file: Path


class _Answer(NamedTuple):
    status: int
    body: dict[str, Any]
    """Empty if the answer is not a JSON object."""

    @property
    def code(self) -> int:
        """Code of gRPC; 0: success, or an answer of another server."""
        found = self.body.get("code")
        return found if isinstance(found, int) else 0

    @property
    def message(self) -> str:
        return str(self.body.get("error") or self.body.get("message") or "")


class EtcdGateway:
    """One client of an etcd cluster; at most one call at a time."""

    def __init__(
        self,
        endpoints: tuple[str, ...],
        *,
        timeout_ms: int,
        tls: ssl.SSLContext | None = None,
        login: Login | None = None,
    ) -> None:
        """Connect with the first call. endpoints: URLs of members of one cluster. timeout_ms: time
        in which all of them can be tried; the caller of a call limits its whole duration."""
        self._endpoints, self._tls, self._login = endpoints, tls, login
        self._connect_timeout_s = timeout_ms / 1000 / len(endpoints)
        self._at = 0
        """Index of the endpoint at which the next call begins."""
        self._token = ""
        self._cluster_id = ""
        self._client: aiohttp.ClientSession | None = None
        """Made with the first call: its connections belong to a running event loop."""

    async def call(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """Return etcd's answer to ``POST /v3/<path>``. Raises EtcdFailed."""
        reason = ""
        for _ in range(len(self._endpoints) + MORE_ATTEMPTS):
            at = self._at
            endpoint = self._endpoints[at]
            # Before the attempt, because a caller whose time is up cancels it: the endpoint may be
            # silent, and the next call must begin at another one.
            self._at = (at + 1) % len(self._endpoints)
            try:
                answer = await self._attempt(endpoint, path, body)
            except (aiohttp.ClientError, OSError) as error:
                reason = self._said(endpoint, error)
                continue
            if answer.status == 200:
                self._at = at
                return answer.body
            reason = _refusal(endpoint, answer)
            if answer.code == UNAUTHENTICATED or answer.message == OLD_TOKEN:
                self._at, self._token = at, ""
            elif not _may_pass(answer):
                break
        raise EtcdFailed(reason)

    async def close(self) -> None:
        """Close the connections."""
        if self._client is not None:
            await self._client.close()

    async def _attempt(self, endpoint: str, path: str, body: dict[str, Any]) -> _Answer:
        """Return the answer of one endpoint, or that to the login before it."""
        if self._login is not None and not self._token:
            # Read each time, because passwords are changed.
            password = self._login.password_file.read_text().strip()
            login = {"name": self._login.user, "password": password}
            answer = await self._post(endpoint, "auth/authenticate", login)
            if answer.status != 200 and answer.code != FAILED_PRECONDITION:
                return answer
            # Without a token: etcd's authentication is off, as while an operator repairs it.
            self._token = str(answer.body.get("token") or "")
        return await self._post(endpoint, path, body)

    async def _post(self, endpoint: str, path: str, body: dict[str, Any]) -> _Answer:
        if self._client is None:
            limits = aiohttp.ClientTimeout(total=None, sock_connect=self._connect_timeout_s)
            self._client = aiohttp.ClientSession(timeout=limits, headers=HAS_LEADER)
        headers = {"Authorization": self._token} if self._token else None
        async with self._client.post(
            f"{endpoint}/v3/{path}",
            json=body,
            headers=headers,
            ssl=self._tls or True,
            allow_redirects=False,
        ) as response:
            text = await response.read()
        try:
            found = json.loads(text)
        except (ValueError, RecursionError):
            found = None
        answer = _Answer(response.status, found if isinstance(found, dict) else {})
        if answer.status == 200:
            self._check_cluster(endpoint, answer)
        return answer

    def _check_cluster(self, endpoint: str, answer: _Answer) -> None:
        """Remember the id of the etcd cluster. Raises EtcdFailed if it is another one."""
        header = answer.body.get("header")
        found = header.get("cluster_id") if isinstance(header, dict) else None
        if not isinstance(found, str):
            raise EtcdFailed(f"the answer of {endpoint} is not that of etcd")
        self._cluster_id = self._cluster_id or found
        if found != self._cluster_id:
            raise EtcdFailed(
                f"{endpoint} belongs to another etcd cluster than the endpoint before it; name "
                "members of one cluster in `cluster.etcd_endpoints`, or restart ha on all nodes "
                "if etcd was set up anew"
            )

    def _said(self, endpoint: str, error: Exception) -> str:
        match error:
            case aiohttp.ClientConnectorCertificateError():
                reason = connection_errors.describe(error.certificate_error)
                remedy = "set `cluster.etcd_tls_ca_file` to the authority that signed it"
                return f"etcd at {endpoint}: {reason}; {remedy}"
            case aiohttp.ClientConnectorError():
                return f"etcd at {endpoint}: {connection_errors.describe(error.os_error)}"
            case aiohttp.ClientOSError(__cause__=ssl.SSLError() as refused):
                reason = connection_errors.describe(refused)
                remedy = "it may require `cluster.etcd_tls_cert_file` and `etcd_tls_key_file`"
                return f"etcd at {endpoint}: {reason}; {remedy}"
            case TimeoutError():
                return f"etcd at {endpoint} does not accept a connection in time"
            case aiohttp.ServerDisconnectedError():
                return f"etcd at {endpoint} closed the connection without an answer"
            case FileNotFoundError() | PermissionError():
                password = None if self._login is None else self._login.password_file
                return f"`cluster.etcd_password_file` {password} cannot be read: {error.strerror}"
            case _:
                return f"etcd at {endpoint}: {connection_errors.describe(error)}"


def _may_pass(answer: _Answer) -> bool:
    """Return whether another endpoint may answer otherwise."""
    return answer.status >= 500 or answer.code in (UNAVAILABLE, DEADLINE_EXCEEDED)


def _refusal(endpoint: str, answer: _Answer) -> str:
    if answer.status == 404:
        return (
            f"{endpoint} has no JSON gateway of etcd: start etcd with --enable-grpc-gateway, and "
            "name its port for HTTP clients in `cluster.etcd_endpoints`"
        )
    message = answer.message.removeprefix("etcdserver: ") or "without a message"
    said = f"etcd at {endpoint} answered {answer.status}: {message[:MESSAGE_SIZE_MAX]}"
    remedy = REMEDIES.get(message)
    return f"{said}; {remedy}" if remedy else said
