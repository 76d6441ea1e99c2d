"""The judge of ``test_damage``: conditions on a node whose store was damaged.

1. No acknowledged message is lost silently: all are served as they were sent, or the node reports
   the damage with a code that the runbook explains.
2. Derived files do not make valid data unavailable: unless the log, or the description of the
store,
   was damaged, all messages are served again after no more than a restart.
3. The remedy in the message heals the damage.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from tests.support.command import run
from tests.support.node import ROLES, Node

DEADLINE_S: Final = 120.0
POLL_S: Final = 0.1
REMEDIES_MAX: Final = 5
RUNBOOK: Final = Path(__file__).resolve().parents[2] / "docs" / "runbook.md"
PASSING: Final = frozenset(
    {
        "catching-up",
        "waiting-for-recovery",
        "waiting-for-store",
        "not-serving",
        "recovering",
        "starting",
        "dispatch-behind",
        "unreachable",
    }
)
"""Reasons that disappear by themselves."""
STARTS_MAX: Final = 3
"""How often a supervisor restarts processes that ended by themselves."""

Place = tuple[str, int, int]
"""(topic, queue, queue offset)"""


class Acked(NamedTuple):
    """A message whose send was answered at ``disk``."""

    place: Place
    body: str
    physical_offset: int
    key: str


class Verdict(NamedTuple):
    """Observations of a node."""

    is_complete: bool
    named: str
    """Errors that it reports, with the code in brackets; empty: none."""


def send(node: Node, topic: str, queue: int, count: int, mark: str, size: int) -> list[Acked]:
    """Send messages one by one at ``disk``; return those that were acknowledged."""
    acked = []
    for number in range(count):
        key = f"{mark}-{number}"
        body = f"{topic} {queue} {key} ".ljust(size, "x")
        message = {"body_text": body, "queue": queue, "keys": [key]}
        status, answer = node.request_json(
            "POST",
            f"/v1/topics/{topic}/messages",
            {"messages": [message], "ack": "disk"},
            timeout_s=60.0,
        )
        if status != 200:
            continue
        (result,) = answer["results"]
        place = (topic, queue, int(result["queue_offset"]))
        acked.append(Acked(place, body, int(result["physical_offset"]), key))
    return acked


class Judge:
    """Observes one node through its damage."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.ends: list[str] = []
        """Sentences with which processes ended."""

    # -- reading --------------------------------------------------------------------------------

    def look(self, acked: list[Acked]) -> Verdict:
        """Read every queue with acknowledged messages, and the errors that the node reports."""
        missing: list[Acked] = []
        faults: set[str] = set()
        for queue in sorted({one.place[:2] for one in acked}):
            wanted = [one for one in acked if one.place[:2] == queue]
            found, fault = self._read(*queue)
            for one in wanted:
                body = found.get(one.place[2])
                assert body in (None, one.body), f"{one.place} was {one.body!r}, is {body!r}"
                if body is None:
                    missing.append(one)
            faults |= fault
        faults |= self._reasons()
        if not missing and not faults:
            faults |= self._unfound_keys(acked)
            return Verdict(not faults, "" if not faults else " ".join(sorted(faults)))
        return Verdict(False, " ".join(sorted(faults)))

    def _read(self, topic: str, queue: int) -> tuple[dict[int, str], set[str]]:
        """Return the bodies of all readable messages by queue offset, and codes of errors."""
        found: dict[int, str] = {}
        at = 0
        while True:
            path = f"/v1/topics/{topic}/queues/{queue}/messages?offset={at}&max=32"
            status, answer = self.node.request_json("GET", path, timeout_s=60.0)
            if status != 200:
                return found, {_described(answer)} if answer else {"unreachable"}
            for message in answer["messages"]:
                found[message["queue_offset"]] = message["body_text"]
            following = answer["next_offset"]
            if not answer["messages"] and following <= at:
                return found, set()
            at = max(following, at)

    def _unfound_keys(self, acked: list[Acked]) -> set[str]:
        """Look up the keys of a few messages, the first and the last: the index is whole."""
        for one in (*acked[:2], *acked[-2:]):
            status, answer = self.node.get_json(
                f"{self.node.api_url}/v1/topics/{one.place[0]}/messages?key={one.key}"
            )
            if status != 200:
                return {_described(answer)} if answer else {"unreachable"}
            if one.body not in [message["body_text"] for message in answer["messages"]]:
                return {f"catching-up: key {one.key} is not found"}
        return set()

    def _reasons(self) -> set[str]:
        errors = set()
        for role in ROLES:
            answer = self.node.ready(role)
            if not answer:
                errors.add("unreachable")
            for reason in answer.get("reasons", []):
                errors.add(f"[{reason['code']}] {reason['detail']}")
        return errors

    # -- waiting --------------------------------------------------------------------------------

    def settle(self, acked: list[Acked], *, starts: int = STARTS_MAX) -> Verdict:
        """Wait until everything is served, or a lasting error is reported.

        starts: how often processes that ended by themselves are restarted.
        """
        deadline = time.monotonic() + DEADLINE_S
        seen = Verdict(False, "")
        left = {role: starts for role in ROLES}
        while time.monotonic() < deadline:
            ended = [role for role in ROLES if not self.node.is_alive(role)]
            for role in ended:
                self._note_end(role)
                if left[role] == 0:
                    return Verdict(False, self.ends[-1])
                left[role] -= 1
                self.node.start(role)
            seen = self.look(acked)
            if seen.is_complete or _lasting(seen.named):
                return seen
            time.sleep(POLL_S)  # the state of other processes: there is no event to wait for
        raise AssertionError(f"lost in silence, or for good: {seen.named or 'ready'}")

    def _note_end(self, role: str) -> None:
        text = self.node.log_text(role)
        errors = [line for line in text.splitlines() if line.startswith("tidemark: ")]
        assert errors, f"{role} ended without a word: {text[-2000:]}"
        self.ends.append(errors[-1].removeprefix("tidemark: "))

    # -- reported errors ------------------------------------------------------------------------

    @staticmethod
    def check_named(named: str) -> str:
        """Return the code of the lasting error, which the runbook explains."""
        found = re.findall(r"\[([a-z-]+)\]", named)
        codes = [code for code in found if code not in PASSING]
        assert codes, f"no code in {named!r}"
        headings = RUNBOOK.read_text(encoding="utf-8")
        assert f"\n## `{codes[0]}`" in headings, f"the runbook does not explain {codes[0]}"
        return str(codes[0])


def _lasting(named: str) -> bool:
    codes = set(re.findall(r"\[([a-z-]+)\]", named))
    return bool(codes - PASSING)


def _described(answer: Mapping[str, Any]) -> str:
    return f"[{answer.get('code')}] {answer.get('detail')}"


# -- remedies -------------------------------------------------------------------------------------


def apply_remedy(store: Path, named: str, *, begins: bool) -> Callable[[Acked], bool]:
    """Follow the message's advice for a store without a copy; return the surviving messages.

    begins: if the log may be cut, or begin behind the damage, let it begin there.
    """
    if "store repair --store" in named and "--rename`" in named:
        _tool("store", "repair", "--store", store, "--rename")
        return lambda one: True
    truncated = re.search(r"truncate -s (\d+) (\S+?)`", named)
    if truncated:
        size, path = int(truncated[1]), Path(truncated[2])
        with path.open("r+b") as file:
            file.truncate(size)
        return lambda one: True
    cut = re.search(r"--cut-at (\d+) --yes", named)
    if cut:
        end = int(cut[1])
        _tool("store", "repair", "--store", store, "--cut-at", str(end), "--yes")
        return lambda one: one.physical_offset < end
    begin = re.search(r"--begin-at (\d+) --yes", named)
    if begin:
        at = int(begin[1])
        _tool("store", "repair", "--store", store, "--begin-at", str(at), "--yes")
        return lambda one: one.physical_offset >= at
    described = re.search(r"\[damaged-file\] (\S+) .*Remove the file", named)
    if described:
        Path(described[1]).unlink()
        return lambda one: True
    errors = run("store", "repair", "--store", store, "--dry-run").stdout.decode()
    begin = re.search(r"--begin-at (\d+) --yes", errors)
    cut = re.search(r"damage at physical offset (\d+)", errors)
    if begin and (begins or not cut):
        at = int(begin[1])
        _tool("store", "repair", "--store", store, "--begin-at", str(at), "--yes")
        return lambda one: one.physical_offset >= at
    if cut:
        end = int(cut[1])
        _tool("store", "repair", "--store", store, "--cut-at", str(end), "--yes")
        return lambda one: one.physical_offset < end
    _tool("store", "rebuild", "--store", store)
    return lambda one: True


def _tool(*arguments: str | Path) -> None:
    done = run(*arguments)
    assert done.returncode == 0, (done.stdout + done.stderr).decode(errors="replace")
