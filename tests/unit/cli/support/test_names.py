"""Name services in a support bundle: their routes, their settings, and no secret of theirs."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from click.testing import CliRunner

from tidemark.cli.doctor import settings
from tidemark.cli.doctor.findings import About
from tidemark.cli.doctor.settings import Asked
from tidemark.cli.main import cli
from tidemark.cli.support import command
from tidemark.cli.support.bundle import Bundle
from tidemark.cli.support.command import _secret_files
from tidemark.cli.support.of_nodes import _nodes

SECRET = "twelve plus four bytes of a secret"


async def test_routes_of_nodes_and_of_the_name_services_that_they_list_are_included() -> None:
    async def route(request: web.Request) -> web.Response:
        return web.json_response({"names": [f"{request.url.origin()}/", "http://127.0.0.1:1"]})

    application = web.Application()
    application.router.add_get("/v1/route", route)
    async with TestServer(application) as server:
        bundle, url = Bundle(), server.make_url("/")
        await _nodes(bundle, [], [f"http://127.0.0.1:{url.port}"], [])
        manifest = bundle.close([], {})
    assert f"nodes/127.0.0.1_{url.port}/route.json" in manifest["files"]
    left_out = [each["what"] for each in manifest["left_out"]]
    assert "nodes/127.0.0.1_1/route.json" in left_out


def test_secrets_are_found_in_every_table_of_the_settings() -> None:
    assert _secret_files(
        {
            "secret_file": "/names",
            "cluster": {
                "secret_file": "/group",
                "etcd_password_file": "/etcd",
                "tls_key_file": None,
            },
            "names": {"secret_file": "/registrations"},
        }
    ) == [Path("/etcd"), Path("/group"), Path("/names"), Path("/registrations")]
    assert _secret_files({"cluster": "shop", "secret_file": None}) == []


def test_secrets_of_settings_that_cannot_be_read_are_reported_as_not_searched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unread = Asked(None, [About("config.names", "it").unknown("not read within 9 s")])
    monkeypatch.setattr(command, "ask", lambda *_: unread)
    bundle = Bundle()
    assert command._settings(bundle, {"names": tmp_path / "names.toml"}, None) == ({}, [])
    left_out = [each["what"] for each in bundle.close([], {})["left_out"]]
    assert f"a search for the secrets that {tmp_path}/names.toml names" in left_out


def test_the_settings_of_a_name_service_are_included_without_its_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings, "ASK_S", 300.0)  # the machine may be busy
    secret, given = tmp_path / "secret", tmp_path / "names.toml"
    secret.write_text(SECRET)
    secret.chmod(0o600)
    given.write_text(f'cluster = "shop"\nport = 1\nadmin_port = 2\nsecret_file = "{secret}"\n')
    log = tmp_path / "names.log"
    log.write_text(json.dumps({"event": "listening", "message": f"with {SECRET}"}) + "\n")
    arguments = ["support-bundle", "--config", str(given), "--log", str(log), "--file", "-"]
    packed = CliRunner().invoke(cli, arguments).stdout_bytes
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        files = {
            member.name.partition("/")[2]: archive.extractfile(member).read()  # type: ignore[union-attr]
            for member in archive.getmembers()
        }
    shown = json.loads(files["config/names.json"])
    assert (shown["cluster"], shown["secret_file"]) == ("shop", str(secret))
    assert all(SECRET.encode() not in data for data in files.values())
    assert "a secret in logs/names.log" in files["manifest.json"].decode()
    assert "config.names" in {each["check"] for each in json.loads(files["doctor.json"])}
