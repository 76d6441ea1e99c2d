"""``tidemark support-bundle``: writes one archive for remote support.

It works with a stopped node, a damaged store, or a read-only disk (write the archive elsewhere or
to standard output). The archive contains no message data and no secret; its manifest lists what was
left out, and why.
"""

from __future__ import annotations

import os
import platform
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import click

from tidemark import __version__
from tidemark.cli.doctor.command import examined
from tidemark.cli.doctor.names import subject_of
from tidemark.cli.doctor.settings import ask
from tidemark.cli.doctor.subject import subject, subject_options
from tidemark.cli.output import print_facts, say, with_output
from tidemark.cli.support import of_machine, of_nodes, of_store, redact
from tidemark.cli.support.bundle import Bundle
from tidemark.errors import TidemarkError

SECRET_SIZE_MAX: Final = 64 << 10
SECRET_SETTINGS: Final = (
    "secret_file",
    "tls_key_file",
    "etcd_password_file",
    "etcd_tls_key_file",
)
STDOUT: Final = "-"
LOOPBACK: Final = {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "[::1]"}


class BundleNotWritten(TidemarkError):
    """The archive could not be written to the chosen place."""

    code, title = "bundle-not-written", "The support bundle was not written"


@click.command("support-bundle")
@subject_options
@click.option(
    "--admin",
    multiple=True,
    metavar="URL",
    help="An admin port for /ready and /metrics; known ones need not be given.",
)
@click.option(
    "--log",
    "logs",
    multiple=True,
    type=click.Path(path_type=Path),
    help="A file with a service's log; its last lines are included.",
)
@click.option(
    "--file",
    "target",
    help="Output file; `-`: standard output. Default: a new name in the current directory.",
)
@with_output
def support_bundle(
    config: tuple[str, ...],
    store: Path | None,
    url: str | None,
    admin: tuple[str, ...],
    logs: tuple[Path, ...],
    target: str | None,
) -> None:
    """Collect the data needed for support in one archive: no message, no key, no secret."""
    files, store, urls = subject(config, store, url)
    made_at = time.time()
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(made_at))
    name = f"tidemark-support-{re.sub(r'[^A-Za-z0-9.-]', '-', platform.node())}-{stamp}"
    bundle = Bundle()
    settings, secrets = _settings(bundle, files, store)
    collectors = _collectors(bundle, settings, files, store, urls, [*admin], [*logs])
    bundle.collect(collectors)
    facts = {"tidemark": __version__, "made_at": stamp, "host": platform.node()}
    manifest = bundle.close(secrets, facts)
    data = bundle.archive(name, made_at)
    if target == STDOUT:
        sys.stdout.buffer.write(data)
        say(f"{len(data)} bytes, {len(manifest['files'])} files")
        return
    path = Path(target or f"{name}.tar.gz")
    _write(path, data)
    print_facts(
        {
            "file": str(path),
            "size": len(data),
            "files": len(manifest["files"]),
            "left_out": len(manifest["left_out"]),
        }
    )
    say("Check its contents before you send it: manifest.json lists what it has and omits.")


def _settings(
    bundle: Bundle, files: Mapping[str, Path], store: Path | None
) -> tuple[dict[str, Mapping[str, Any]], list[bytes]]:
    """Add the settings of the services to the bundle; return them and the secrets to remove."""
    found: dict[str, Mapping[str, Any]] = {}
    secrets: list[bytes] = []
    for service, path in files.items():
        asked = ask(service, path, store)
        if asked.settings is None:
            causes = "; ".join(finding.cause for finding in asked.findings)
            bundle.leave_out(f"config/{service}.json", redact.text(causes))
            bundle.leave_out(f"a search for the secrets that {path} names", "it was not read")
            continue
        found[service] = asked.settings
        bundle.add_json(f"config/{service}.json", redact.settings(asked.settings))
        for named in _secret_files(asked.settings):
            secrets += _secret(bundle, named)
            for rotated in named.parent.glob(f"{named.name}.*"):
                secrets += _secret(bundle, rotated)
    return found, secrets


def _secret_files(settings: Mapping[str, Any]) -> list[Path]:
    """Return the files of secrets that the settings of a service name, in any of its tables."""
    tables = [settings, *(table for table in settings.values() if isinstance(table, Mapping))]
    named = {table[name] for table in tables for name in SECRET_SETTINGS if table.get(name)}
    return sorted(map(Path, named))


def _secret(bundle: Bundle, path: Path) -> list[bytes]:
    """Return a file of secrets, whole and by line, to search the bundle for them."""
    try:
        with path.open("rb") as file:
            data = file.read(SECRET_SIZE_MAX)
    except OSError as error:
        bundle.leave_out(f"a search for what is in {path}", f"{error.strerror}")
        return []
    lines = [line.strip() for line in data.splitlines()]
    return [data, *(line for line in lines if len(line) >= redact.SECRET_SIZE_MIN)]


def _collectors(
    bundle: Bundle,
    settings: Mapping[str, Mapping[str, Any]],
    files: Mapping[str, Path],
    store: Path | None,
    urls: Sequence[str],
    admins: list[str],
    logs: Sequence[Path],
) -> dict[str, Callable[[], None]]:
    """Return all collectors by the name of their output."""
    stores = [Path(each["store_dir"]) for each in settings.values() if "store_dir" in each]
    place = store or next(iter(stores), None)
    found: dict[str, Callable[[], None]] = {
        "versions.json": partial(of_machine.versions, bundle),
        "machine/kernel.json": partial(of_machine.kernel, bundle),
        "doctor.json": partial(_doctor, bundle, files, place, urls),
    }
    if place is not None:
        found |= {
            "store/files.jsonl": partial(of_store.listing, bundle, place),
            "store/checkpoint.json": partial(of_store.checkpoint, bundle, place),
            "store/epochs.json": partial(of_store.epoch_table, bundle, place),
            "store/ha": partial(of_store.small_files, bundle, place),
            "machine/mount.json": partial(of_machine.mount, bundle, place),
        }
    known = [*admins, *_admins(settings)]
    subject = subject_of(settings.get("names"), settings.get("broker"), ())
    routed = [*sorted(subject.listed), *subject.given]
    if urls or routed or known:
        found["nodes"] = partial(of_nodes.nodes, bundle, urls, routed, known)
    for path in logs:
        name, count = f"logs/{path.name}", 2
        while name in found:  # logs of several services may have the same file name
            name, count = f"logs/{path.name}.{count}", count + 1
        found[name] = partial(of_machine.log, bundle, path, name)
    return found


def _admins(settings: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return the admin URLs of this machine's services, from their settings."""
    return [
        f"http://{LOOPBACK.get(each['admin_host'], each['admin_host'])}:{each['admin_port']}"
        for each in settings.values()
        if each.get("admin_port")
    ]


def _doctor(
    bundle: Bundle, files: Mapping[str, Path], store: Path | None, urls: Sequence[str]
) -> None:
    findings = [finding._asdict() for finding in examined(files, store, urls)]
    bundle.add_json("doctor.json", redact.settings(findings))


def _write(path: Path, data: bytes) -> None:
    """Create a file that only its owner may read. Raises BundleNotWritten."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
    except OSError as error:
        raise BundleNotWritten(
            f"{path} cannot be written: {error.strerror}. Nothing else was changed.",
            "Choose another place with --file, or `--file -` for standard output.",
        ) from error
