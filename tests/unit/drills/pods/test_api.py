"""Authorization at the API server: permitted requests, and the responses to others."""

from __future__ import annotations

import shutil
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from drills.pods.api import PORT, Api, make_authority
from drills.pods.objects import Objects
from drills.pods.rbac import Account
from tests.unit.drills.pods.test_rbac import LEASES, binding

LEASE = {"metadata": {"name": "mark-g0"}, "spec": {}}
PATH = "/apis/coordination.k8s.io/v1/namespaces/shop/leases"


@pytest.fixture
async def api() -> AsyncIterator[Api]:
    served = Api(lambda: Objects([LEASES, binding()]))
    await served.server.start()
    yield served
    await served.close()


async def ask(api: Api, method: str, path: str, token: str, body: object = None) -> int:
    headers = {"Authorization": f"Bearer {token}"}
    async with (
        aiohttp.ClientSession(headers=headers) as session,
        session.request(method, api.server.url + path, json=body) as answer,
    ):
        return answer.status


async def test_a_token_gives_what_the_roles_of_its_account_give(api: Api) -> None:
    token = api.new_token(Account("shop", "mark"))
    assert await ask(api, "POST", PATH, token, LEASE) == 201
    assert await ask(api, "GET", f"{PATH}/mark-g0", token) == 200
    assert await ask(api, "DELETE", f"{PATH}/mark-g0", token) == 403
    assert await ask(api, "GET", "/api/v1/namespaces/shop/secrets", token) == 403
    assert await ask(api, "GET", "/faults", token) == 403
    assert len(api.refusals) == 3
    assert 'cannot delete resource "leases"' in api.refusals[0]


async def test_a_caller_without_a_token_and_a_removed_pod_are_anonymous(api: Api) -> None:
    token = api.new_token(Account("shop", "mark"))
    api.forget(token)
    for unknown in ("", "guessed", token):
        assert await ask(api, "GET", f"{PATH}/mark-g0", unknown) == 401


async def test_labels_are_of_pods_that_are_there(api: Api) -> None:
    token = api.new_token(Account("shop", "mark"))
    path, label = "/api/v1/namespaces/shop/pods/mark-g0-0", {"metadata": {"labels": {"role": "x"}}}
    assert await ask(api, "PATCH", path, token, label) == 404
    api.server.objects.make_pod("shop", "mark-g0-0", {"app": "mark"})
    assert await ask(api, "PATCH", path, token, label) == 200
    assert api.server.objects.labels("shop", "mark-g0-0") == {"app": "mark", "role": "x"}
    api.server.objects.remove_pod("shop", "mark-g0-0")
    assert api.server.objects.labels("shop", "mark-g0-0") == {}


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
def test_the_servers_certificate_is_for_its_address_and_name(tmp_path: Path) -> None:
    made = make_authority(tmp_path, "10.214.0.1")
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(made.server_certificate, made.server_key)
    client = ssl.create_default_context(cafile=made.certificate)
    for name in ("10.214.0.1", "kubernetes.default.svc"):
        to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
        ours = client.wrap_bio(to_client, to_server, server_hostname=name)
        theirs = server.wrap_bio(to_server, to_client, server_side=True)
        for end in (ours, theirs, ours, theirs):
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
        assert ours.version() == "TLSv1.3"
    assert PORT == 443
