"""The API server of pods without a cluster: Leases and pods over TLS, authorized by the Roles.

The server is ``drills.lease_api``. Each pod has its own token of its service account. A request
without a valid token is answered with status 401, one that no Role permits with status 403.
"""

from __future__ import annotations

import secrets
import ssl
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from drills.lease_api import LeaseApi
from drills.lease_objects import Answer, failure
from drills.pods.objects import Objects
from drills.pods.rbac import Account, attempt_of, is_allowed

PORT: Final = 443
NAMES: Final = ("kubernetes.default.svc", "kubernetes.default.svc.cluster.local")
DAYS: Final = "2"


class NoTool(Exception):
    """A program is missing; the message names it and how to install it."""


class Authority(NamedTuple):
    """PEM files of a certificate authority and its server."""

    certificate: Path
    server_certificate: Path
    server_key: Path


def make_authority(directory: Path, address: str) -> Authority:
    """Create a certificate authority and a certificate for the server at an address."""
    directory.mkdir(parents=True, exist_ok=True)
    key, request, names = (directory / part for part in ("ca-key.pem", "request.pem", "names"))
    made = Authority(*(directory / part for part in ("ca.pem", "server.pem", "server-key.pem")))
    names.write_text(
        f"subjectAltName=IP:{address},{','.join(f'DNS:{name}' for name in NAMES)}\n",
        encoding="ascii",
    )
    new_key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", DAYS)
    for command in (
        ("req", "-x509", *new_key, "-keyout", key, "-out", made.certificate, "-subj", "/CN=ca"),
        ("req", *new_key, "-keyout", made.server_key, "-out", request, "-subj", "/CN=api"),
        (
            *("x509", "-req", "-in", request, "-CA", made.certificate, "-CAkey", key),
            *("-CAcreateserial", "-days", DAYS, "-out", made.server_certificate),
            *("-extfile", names),
        ),
    ):
        subprocess.run(["openssl", *map(str, command)], check=True, capture_output=True)
    return made


class Api:
    """The server and its authorization."""

    def __init__(self, objects: Callable[[], Objects]) -> None:
        """objects: returns the currently applied manifests."""
        self.server: Final = LeaseApi()
        self.server.judge = self._judge
        self.server.objects.pods_are_made = True
        self.refusals: Final[list[str]] = []
        """Messages of the rejected requests."""
        self._objects = objects
        self._accounts: dict[str, Account] = {}

    async def start(self, address: str, authority: Authority) -> None:
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(authority.server_certificate, authority.server_key)
        await self.server.start(address, PORT, tls)

    async def close(self) -> None:
        await self.server.close()

    def new_token(self, account: Account) -> str:
        token = secrets.token_urlsafe(48)
        self._accounts[token] = account
        return token

    def forget(self, token: str) -> None:
        """Invalidate the token of a pod that has ended."""
        self._accounts.pop(token, None)

    def _judge(self, token: str, method: str, path: str) -> Answer | None:
        account = self._accounts.get(token)
        if account is None:
            return failure(401, "Unauthorized", "Unauthorized", "", "")
        attempt = attempt_of(method, path)
        if attempt is None:
            text = f'forbidden: User "{account.user}" cannot {method.lower()} path "{path}"'
            return self._refuse(text, "", "")
        if is_allowed(self._objects(), account, attempt):
            return None
        return self._refuse(attempt.refusal(account), attempt.resource, attempt.name)

    def _refuse(self, text: str, resource: str, name: str) -> Answer:
        self.refusals.append(text)
        return failure(403, "Forbidden", text, resource, name)
