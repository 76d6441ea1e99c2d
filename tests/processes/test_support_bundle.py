"""A bundle of a real node with planted bodies, keys, properties and secrets: none of them is in it.

Also of a stopped node, of a damaged store, and of one on a read-only disk.
"""

from __future__ import annotations

import base64
import io
import json
import os
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

import tidemark as client
from tests.support.command import run, tidemark
from tests.support.node import Node
from tests.support.small_disk import MIB, mounted

BODY: Final = b"planted-body-7f3a"
KEY: Final = "planted-key-91cc"
TAG: Final = "planted-tag-02de"
PROPERTY: Final = "planted-property-5b18"
SECRET: Final = "planted-secret-0123456789abcdef"
PLANTED: Final = (BODY.decode(), KEY, TAG, PROPERTY, SECRET)


def files_of(archive: bytes) -> dict[str, bytes]:
    with tarfile.open(fileobj=io.BytesIO(archive)) as opened:
        found = {}
        for entry in opened:
            file = opened.extractfile(entry)
            assert file is not None
            found[entry.name.partition("/")[2]] = file.read()
        return found


def assert_nothing_planted(files: dict[str, bytes]) -> None:
    everything = b"\n".join(files.values())
    everything += "\n".join(files).encode()
    for planted in PLANTED:
        for form in (planted.encode(), planted.encode().hex().encode()):
            assert form not in everything, f"{planted} is in the bundle"
        # Whatever precedes it, one of three alignments is its base64.
        for lead in range(3):
            encoded = base64.b64encode(b"\0" * lead + planted.encode())[4:-4]
            assert encoded not in everything, f"{planted} is in the bundle as base64"


def left_out(files: dict[str, bytes]) -> dict[str, str]:
    return {each["what"]: each["why"] for each in json.loads(files["manifest.json"])["left_out"]}


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with Node(tmp_path, broker={"auto_create_topics": True}) as running:
        running.start()
        running.wait_ready()
        yield running


@pytest.fixture
def settings(tmp_path: Path) -> Path:
    """Settings of ha with a secret; their file says it once more in a comment."""
    directory = tmp_path / "etc"
    directory.mkdir()
    secret = directory / "secret"
    secret.write_text(SECRET)
    secret.chmod(0o600)
    (directory / "ha.toml").write_text(
        f"""
# {SECRET}
store_dir = "{tmp_path}/store"
[store]
visible_after = "confirmed"
[cluster]
node = "a"
nodes = ["a=127.0.0.1:1", "b=127.0.0.1:2"]
api = ["a=http://user:{SECRET}@127.0.0.1:3", "b=http://127.0.0.1:4"]
admin = ["a=http://127.0.0.1:5", "b=http://127.0.0.1:6"]
secret_file = "{secret}"
lease_dir = "{tmp_path}"
"""
    )
    return directory


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "kept" / "broker.log"
    path.parent.mkdir()
    lines: list[Any] = [
        {"event": "granted", "message": "a fact of ours", "epoch": 3},
        {"event": "odd", "message": "m", "body_text": BODY.decode(), "keys": [KEY]},
        {"event": "internal-error", "message": f"x {KEY}", "error": f"ValueError: {PROPERTY}",
         "stack": f"Traceback:\n  File \"a.py\", line 1, in f\n    {TAG}\nValueError: {BODY!r}"},
        {"event": "config", "message": "m", "detail": f"secret is {SECRET}"},
        {"event": "library", "logger": "x", "message": f"GET /?key={KEY}"},
    ]  # fmt: skip
    text = "\n".join(json.dumps(line) for line in lines)
    path.write_text(f"{text}\nsomebody printed {PROPERTY}\n")
    return path


async def send(url: str) -> None:
    async with client.connect(url) as mq:
        await mq.send("orders", BODY, tags=TAG, keys=[KEY], properties={"mine": PROPERTY})


async def test_nothing_of_a_message_and_no_secret_is_in_the_bundle(
    node: Node, settings: Path, log: Path, tmp_path: Path
) -> None:
    await send(node.api_url)
    stored = b"".join(
        path.read_bytes() for path in (tmp_path / "store").rglob("*") if path.is_file()
    )
    assert all(each.encode() in stored for each in PLANTED[:4])
    target = tmp_path / "bundle.tar.gz"
    tidemark(
        *("support-bundle", "--url", node.api_url, "--config", settings, "--log", log),
        *("--log", node.processes["broker"].log_path, "--log", node.processes["reput"].log_path),
        *("--admin", f"http://127.0.0.1:{node.ports['broker']}", "--file", target),
    )
    assert target.stat().st_mode & 0o777 == 0o600
    files = files_of(target.read_bytes())
    assert_nothing_planted(files)
    assert {
        *("versions.json", "doctor.json", "config/ha.json", "logs/broker.log"),
        *("store/checkpoint.json", "store/files.jsonl", "machine/kernel.json"),
    } <= files.keys()
    metrics = next(data for name, data in files.items() if name.endswith("metrics.txt"))
    assert b'topic="orders"' in metrics
    kept = [json.loads(line) for line in files["logs/broker.log"].splitlines()]
    assert kept[0] == {"event": "granted", "message": "a fact of ours", "epoch": 3}
    real = [json.loads(line) for line in files["logs/broker.log.2"].splitlines()]
    assert "listening" in {line["event"] for line in real}
    assert kept[2]["stack"] == ['File "a.py", line 1, in f']
    assert "1 lines of logs/broker.log" in left_out(files)
    # It was in a place where no pattern could identify it, and is removed all the same.
    assert "a secret in logs/broker.log" in left_out(files)
    paths = {json.loads(each)["path"] for each in files["store/files.jsonl"].splitlines()}
    assert "commitlog/00000000000000000000" in paths


async def test_a_bundle_of_a_stopped_node_with_a_damaged_store_has_the_rest(
    node: Node, tmp_path: Path
) -> None:
    await send(node.api_url)
    node.stop()
    store = tmp_path / "store"
    (store / "checkpoint").write_bytes(b"")
    log_file = store / "commitlog/00000000000000000000"
    with log_file.open("r+b") as file:
        file.write(os.urandom(4096))
    (store / "tidemark.json").write_text("{ half")
    done = run("support-bundle", "--store", store, "--url", node.api_url, "--file", "-")
    assert done.returncode == 0, done.stderr
    files = files_of(done.stdout)
    assert_nothing_planted(files)
    missing = left_out(files)
    assert "0 bytes, not 4096" in missing["store/checkpoint.json"]
    assert any(name.startswith("nodes/") for name in missing), (
        "a node that does not answer is listed"
    )
    assert files["store/tidemark.json"] == b"{ half"
    doctor = json.loads(files["doctor.json"])
    assert any(each["code"] == "doctor-unreachable" for each in doctor)


def test_a_read_only_disk_is_reported_and_does_not_prevent_a_bundle(tmp_path: Path) -> None:
    with mounted("tmpfs", tmp_path, 4 * MIB) as disk:
        (disk / "commitlog").mkdir()
        (disk / "checkpoint").write_bytes(b"\0" * 4096)
        subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
        refused = run("support-bundle", "--store", disk, "--file", disk / "b.tar.gz")
        assert refused.returncode == 1
        assert b"[bundle-not-written]" in refused.stderr
        assert b"Read-only file system" in refused.stderr
        done = run("support-bundle", "--store", disk, "--file", "-")
        assert done.returncode == 0, done.stderr
        files = files_of(done.stdout)
        assert "store/checkpoint.json" in files
        assert json.loads(files["machine/mount.json"])["kind"] == "tmpfs"
        findings = json.loads(files["doctor.json"])
        assert {"doctor-not-writable", "doctor-volatile-disk"} <= {f["code"] for f in findings}


def test_an_existing_file_is_not_overwritten(tmp_path: Path) -> None:
    target = tmp_path / "bundle.tar.gz"
    target.write_bytes(b"mine")
    done = run("support-bundle", "--store", tmp_path, "--file", target)
    assert done.returncode == 1
    assert b"[bundle-not-written]" in done.stderr
    assert target.read_bytes() == b"mine"
