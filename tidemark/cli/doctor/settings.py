"""Reads the settings of a node's services by running the services with ``--check-config``.

The command line imports no service. Each service runs in its own process with this environment, so
it reports the settings with which it would start.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from shared.runtime import programs
from tidemark.cli.doctor.findings import About, Finding

SERVICES: Final = ("broker", "reput", "ha", "names")
ASK_S: Final = 9.0
BAD_CONFIG_STATUS: Final = 2
SECRET_EVENT: Final = "secret-readable"


class Asked(NamedTuple):
    """The result of reading one service's settings."""

    settings: Mapping[str, Any] | None
    """None if they are invalid or could not be read."""
    findings: list[Finding]


def files_of(given: tuple[str, ...]) -> dict[str, Path]:
    """Map services to files, given directories, files named after a service, or ``SERVICE=FILE``.

    Raises ValueError naming an argument that is none of them.
    """
    found: dict[str, Path] = {}
    for each in given:
        name, equals, path = each.partition("=")
        if equals and name in SERVICES:
            found[name] = Path(path)
        elif Path(each).is_dir():
            inside = {name: Path(each) / f"{name}.toml" for name in SERVICES}
            present = {name: path for name, path in inside.items() if path.exists()}
            if not present:
                raise ValueError(f"{each} has no broker.toml, reput.toml, ha.toml or names.toml")
            found |= present
        elif Path(each).stem in SERVICES:
            found[Path(each).stem] = Path(each)
        else:
            raise ValueError(f"{each}: of which service? Use SERVICE=FILE, like broker=FILE")
    return found


def ask(service: str, config: Path, store: Path | None) -> Asked:
    """Let a service read its settings. Blocks for at most ``ASK_S``."""
    command = [*programs.service(service), "--check-config"]
    command += ["--config", str(config)]
    if store is not None and service != "names":  # it has no store
        command += ["--store", str(store)]
    check = f"config.{service}"
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=ASK_S, check=False)
    except subprocess.TimeoutExpired:
        return Asked(None, [About(check, str(config)).unknown(f"not read within {ASK_S:.0f} s")])
    if done.returncode == BAD_CONFIG_STATUS:
        cause = done.stderr.strip().removeprefix("tidemark: ").removeprefix("[bad-config] ")
        return Asked(None, [_mistakes(check, config, cause)])
    try:
        settings: Mapping[str, Any] = json.loads(done.stdout)["settings"]
    except (ValueError, KeyError, TypeError):
        last = done.stderr.strip().splitlines()[-1:] or [f"status {done.returncode}"]
        return Asked(None, [About(check, str(config)).unknown(f"{service} reports: {last[0]}")])
    well = About(check, str(config)).ok("valid")
    return Asked(settings, [well, *_secret(service, settings, done.stderr)])


def differing(settings: Mapping[str, Mapping[str, Any]]) -> list[Finding]:
    """Return the settings that differ between the services of a node and must not."""
    settings = {service: each for service, each in settings.items() if service != "names"}
    if len(settings) < 2:
        return []
    found = []
    shapes = ("commit_log_file_size", "consume_queue_file_size", "index_slots", "index_entries")
    for name in (*shapes, "visible_after"):
        found += _differs(f"store.{name}", {s: v["store"][name] for s, v in settings.items()})
    found += _differs("store_dir", {service: v["store_dir"] for service, v in settings.items()})
    found += _differs("run_dir", {service: v["run_dir"] for service, v in settings.items()})
    grouped = {s: v["cluster"] for s, v in settings.items() if "cluster" in v}
    for name in (
        "name",
        "group",
        "node",
        "nodes",
        "node_count",
        "api",
        "admin",
        "lease",
        "profile",
    ):
        found += _differs(f"cluster.{name}", {s: v[name] for s, v in grouped.items()})
    names = ", ".join(settings)
    return found or [About("config.together", names).ok("the services' settings agree")]


def _differs(name: str, values: Mapping[str, object]) -> list[Finding]:
    if len({json.dumps(value) for value in values.values()}) < 2:
        return []
    shown = ", ".join(f"{service} has {value}" for service, value in values.items())
    return [
        About("config.together", name).error(
            "bad-config",
            f"the services of one node differ in {name}: {shown}",
            "Give all services of the node the same value.",
        )
    ]


def _mistakes(check: str, config: Path, cause: str) -> Finding:
    return About(check, str(config)).error(
        "bad-config", cause, "Correct the settings; docs/configuration.md has every unit and range."
    )


def secret_path(service: str, settings: Mapping[str, Any]) -> str | None:
    """Return the file of the secret that a service reads; None if it reads none."""
    path = None
    match service:
        case "names":
            path = settings["secret_file"]
        case "ha":
            path = settings["cluster"]["secret_file"]
        case "broker" if settings["names"]["urls"]:
            path = settings["names"]["secret_file"] or settings["cluster"]["secret_file"]
    return None if path is None else str(path)


def _secret(service: str, settings: Mapping[str, Any], log: str) -> list[Finding]:
    """Check the secret's file: the service has read it, and logged whether others may read it."""
    path = secret_path(service, settings)
    if path is None:
        return []
    for line in log.splitlines():
        if SECRET_EVENT in line:
            return [
                About("config.secret", path).error(
                    "doctor-secret-readable",
                    "users other than its owner may read the group's secret",
                    f"chmod 600 {path}; if others had access, create a new secret.",
                    value=_mode(line),
                    limit="0600",
                )
            ]
    return [About("config.secret", path).ok("readable only by its owner", limit="0600")]


def _mode(line: str) -> str | None:
    try:
        return str(json.loads(line)["mode"])
    except (ValueError, KeyError, TypeError):
        return None
