"""The steps of the proof: each says what it has shown, or raises NotShown.

What runs is the compose file that a laptop's user starts, and the commands are those that the
documentation names, in the image's own command line.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from tests.image.base import served
from tests.image.engine import Engine, EngineFailed
from tests.support.dockerfile import ROOT

SERVICES: Final = ("broker", "reput", "ha")
NODES: Final = ("n0", "n1")
UID: Final = 10001
TOPIC: Final = "orders"
READY_S: Final = 60.0
TAKE_OVER_S: Final = 30.0
READ_S: Final = 20.0
LOOK_S: Final = 0.2
SIZE_MAX: Final = 260 << 20
"""Bytes of the image with its base; it has been 223 MiB."""
IN_IMAGE: Final = ("run", "--rm", "-T", "cli")
"""The command line of the image, as the documentation calls it."""
UNWANTED: Final = ("gcc", "cc", "make", "pip", "pip3", "cython", "pytest", "mypy")


class NotShown(Exception):
    """What the proof was to show does not hold."""


def say(text: str) -> None:
    """Print one line of the report."""
    print(text, flush=True)


def build(engine: Engine, image: str, base: str, wheels: Path) -> None:
    """Build by the Dockerfile's own steps."""
    began = time.monotonic()
    with served(wheels) as url:
        engine.docker(
            *("build", "--file", "deploy/docker/Dockerfile", "--target", "run"),
            *("--tag", image, "--network", "host"),
            *("--build-arg", f"BASE={base}", "--build-arg", f"PIP_FIND_LINKS={url}"),
            *("--build-arg", "PIP_NO_INDEX=1", "--build-arg", "REVISION=proof", str(ROOT)),
            timeout_s=1200,
        )
    facts = _inspect(engine, image)
    size = int(facts["Size"])
    say(f"built in {time.monotonic() - began:.0f} s: {image}, {size / 2**20:.0f} MiB with its base")
    _expect(size <= SIZE_MAX, f"the image has {size} bytes, more than {SIZE_MAX}")
    settings = facts["Config"]
    _expect(settings["User"] == f"{UID}:{UID}", f"the user is {settings['User']!r}")
    _expect(settings["Labels"]["org.opencontainers.image.revision"] == "proof", "the label is lost")


def contents(engine: Engine, image: str) -> None:
    """No tool of the build or the tests is inside, and no module is without its compiled file."""
    script = f"""
        site=/opt/tidemark/lib/python3.11/site-packages
        for name in {" ".join(UNWANTED)}; do
          if command -v $name; then echo "has $name"; fi
        done
        find /opt /usr /var/lib/tidemark -name '*.whl' -o -name '*.pyx' -o -path '*tests/unit*'
        find $site -name '*.py' -size +0 | while read source; do
          compiled="${{source%/*}}/__pycache__/$(basename "$source" .py).cpython-311.pyc"
          [ -e "$compiled" ] || echo "not compiled: $source"
        done
        find /opt/tidemark -user {UID} -o -perm -o+w -not -type l
    """
    found = engine.docker("run", *confined(), image, "sh", "-euc", script)
    _expect(not found, f"what does not belong into the image:\n{found[:2000]}")
    began = time.monotonic()
    shown = engine.docker("run", *confined(), image, "tidemark", "--version").strip()
    say(f"{shown}, said in {time.monotonic() - began:.1f} s from a read-only root")
    for service in (*SERVICES, "names"):
        engine.docker("run", *confined(), image, f"tidemark-{service}", "--help")


def confined() -> list[str]:
    """Options of a container without network or capabilities, on a read-only root."""
    return ["--rm", "--network=none", "--read-only", "--cap-drop=ALL"]


def start(engine: Engine) -> None:
    """Start both nodes anew; wait until there is a master and the other one is in sync."""
    engine.compose("down", "--volumes", "--remove-orphans")  # of a run that was kept
    began = time.monotonic()
    engine.compose("up", "--detach", *(f"{node}-{each}" for node in NODES for each in SERVICES))
    _wait("both nodes are in sync", READY_S, lambda: len(_in_sync(_status(engine))) == len(NODES))
    say(f"master and slave in sync {time.monotonic() - began:.1f} s after `docker compose up`")


def confinement(engine: Engine) -> None:
    """Every container runs as the image's user, without a capability, on a read-only root."""
    script = (
        f"[ $(id -u) = {UID} ]; grep -q 'CapEff:\t0*$' /proc/1/status; "
        "grep -q 'NoNewPrivs:\t1' /proc/1/status; ! touch /etc/x /opt/tidemark/x 2>/dev/null"
    )
    for node in NODES:
        for each in SERVICES:
            engine.compose("exec", "-T", f"{node}-{each}", "sh", "-euc", script)
    say(f"all six run as {UID}, without capabilities or new privileges, on a read-only root")


def doctor(engine: Engine) -> None:
    """The image's own doctor finds every advertised address, and nothing wrong in a container."""
    said = json.loads(engine.compose(*IN_IMAGE, "doctor", "-o", "json"))
    wrong = [each for each in said["findings"] if each["level"] == "error"]
    _expect(not wrong, f"the doctor finds {wrong}")
    inside = ("exec", "-T", "n0-broker", "tidemark")
    config = ("--config", "/etc/tidemark/broker.toml")
    said = json.loads(engine.compose(*inside, "doctor", *config, "-o", "json"))
    wrong = [each for each in said["findings"] if each["level"] == "error"]
    _expect(not wrong, f"inside n0-broker the doctor finds {wrong}")
    say(f"the doctor finds nothing wrong: {said['summary']} inside n0-broker")
    settings = "/etc/tidemark/broker.toml"
    bundle = f"tidemark support-bundle --config {settings} --file /tmp/b >&2; tar tzf /tmp/b"
    names = engine.compose("exec", "-T", "n0-broker", "sh", "-euc", bundle).split()
    inside_it = {name.partition("/")[2] for name in names}
    wanted = {"manifest.json", "config/broker.json", "store/checkpoint.json", "doctor.json"}
    _expect(wanted <= inside_it, f"the support bundle has only {sorted(inside_it)}")
    say(f"a support bundle of {len(names)} files is made there")


def failover(engine: Engine) -> None:
    """One message through; then the master dies, and the message is still there, and a new one."""
    _send(engine, "before")
    _wait_for(engine, ["before"], "the first message is read back")
    say("a message acknowledged by two copies, and read back")
    master = _status(engine)["master"]
    other = next(node for node in NODES if node != master)
    began = time.monotonic()
    engine.compose("kill", *(f"{master}-{each}" for each in SERVICES))
    _wait(f"{other} takes over", TAKE_OVER_S, lambda: _status(engine)["master"] == other)
    say(f"{master}'s containers killed; {other} is master {time.monotonic() - began:.1f} s later")
    _wait_for(engine, ["before"], "the acknowledged message is still there")
    _send(engine, "after", level="disk")
    _wait_for(engine, ["after", "before"], "a message after the failover is read")
    say("the first message is still there, and a new one is acknowledged")
    began = time.monotonic()
    engine.compose("start", *(f"{master}-{each}" for each in SERVICES))
    _wait(f"{master} is back", READY_S, lambda: len(_in_sync(_status(engine))) == len(NODES))
    say(f"{master} follows, in sync {time.monotonic() - began:.1f} s after its start")
    _send(engine, "together")
    _wait_for(engine, ["after", "before", "together"], "all messages are there at the end")


def stop(engine: Engine) -> None:
    """SIGTERM ends every process by itself, with status 0, before anybody kills it."""
    names = [f"{node}-{each}" for node in NODES for each in SERVICES]
    containers = engine.compose("ps", "--quiet", *names).split()
    _expect(len(containers) == len(names), f"{len(containers)} containers run, not {len(names)}")
    began = datetime.now(UTC)
    engine.compose("stop", *names)
    took: dict[str, float] = {}
    for container in containers:
        facts = _inspect(engine, container)
        status, name = facts["State"]["ExitCode"], facts["Name"]
        _expect(status == 0, f"{name} ended with status {status}:\n{_last_words(engine, name)}")
        ended = datetime.fromisoformat(facts["State"]["FinishedAt"][:23] + "+00:00")
        took[name] = (ended - began).total_seconds()
    last = max(took, key=lambda name: took[name])
    say(f"all six ended by themselves, the last one ({last}) {took[last]:.1f} s after SIGTERM")


def _send(engine: Engine, body: str, *, level: str = "replicated") -> None:
    engine.compose(*IN_IMAGE, "produce", TOPIC, "--ack", level, stdin=f"{body}\n".encode())


def _wait_for(engine: Engine, bodies: list[str], what: str) -> None:
    """Wait until the messages can be read: an acknowledged one can be once it is dispatched,
    milliseconds later."""
    _wait(
        what,
        READ_S,
        lambda: sorted(engine.compose(*IN_IMAGE, "consume", TOPIC).split()) == bodies,
    )


def _status(engine: Engine) -> dict[str, Any]:
    text = engine.compose(*IN_IMAGE, "cluster", "status", "-o", "json")
    found: dict[str, Any] = json.loads(text)
    return found


def _in_sync(status: dict[str, Any]) -> list[str]:
    if status["master"] is None:
        return []
    return [node["node"] for node in status["nodes"] if node.get("in_sync")]


def _inspect(engine: Engine, name: str) -> dict[str, Any]:
    found: list[dict[str, Any]] = json.loads(engine.docker("inspect", name))
    return found[0]


def _last_words(engine: Engine, name: str) -> str:
    return engine.docker("logs", "--tail", "5", name.lstrip("/"))


def _wait(what: str, seconds: float, holds: Callable[[], bool]) -> None:
    """Ask until the condition holds. Raises NotShown with the last failure when the time is
    over."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            if holds():
                return
            failure = ""
        except (EngineFailed, ValueError) as error:  # a node that starts answers nothing yet
            failure = f": {error}"
        if time.monotonic() > deadline:
            raise NotShown(f"not within {seconds:.0f} s: {what}{failure}")
        time.sleep(LOOK_S)


def _expect(holds: bool, otherwise: str) -> None:
    if not holds:
        raise NotShown(otherwise)
