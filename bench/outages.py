"""Duration without answered sends: a killed broker, a lost node, a planned switchover.

One sender tries the nodes in turn, like a client that knows both addresses, and records the times
of the answers. The result is the longest time between two successes around the disturbance.
"""

from __future__ import annotations

import http.client
import itertools
import json
import threading
import time
import urllib.request
from collections.abc import Callable
from typing import Final

from bench.group import Group
from bench.servers import HOST, wait_until

PAUSE_S: Final = 0.01
"""Pause between two sends, and before another node is tried."""
ANSWER_S: Final = 1.0
"""Time limit of an answer; then another node is tried."""
QUIET_SENDS: Final = 20
"""Number of consecutive successes required before and after."""
OUTAGE_MAX_S: Final = 60.0
BODY: Final = json.dumps({"messages": [{"body_text": "where is the master?"}]}).encode()


class Sender:
    """Sends one message after another at the level that the group can provide."""

    def __init__(self, group: Group, topic: str) -> None:
        self._nodes = itertools.cycle(group.nodes.values())
        self._path = f"/v1/topics/{topic}/messages"
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.answered_at: list[float] = []

    def __enter__(self) -> Sender:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._thread.join()

    def wait_answered(self, since: float, count: int) -> None:
        def are_answered() -> bool:
            return sum(at > since for at in self.answered_at[-2 * count :]) >= count

        wait_until(are_answered, f"{count} answered sends", OUTAGE_MAX_S)

    def _run(self) -> None:
        for node in self._nodes:
            connection = http.client.HTTPConnection(HOST, node.ports["api"], timeout=ANSWER_S)
            try:
                while not self._ending.is_set() and self._is_answered(connection):
                    self.answered_at.append(time.perf_counter())
                    self._ending.wait(PAUSE_S)
            finally:
                connection.close()
            if self._ending.wait(PAUSE_S):
                return

    def _is_answered(self, connection: http.client.HTTPConnection) -> bool:
        headers = {"Content-Type": "application/json"}
        try:
            connection.request("POST", self._path, BODY, headers)
            answer = connection.getresponse()
            answer.read()
        except (OSError, http.client.HTTPException):
            return False
        return answer.status == 200


def outage(group: Group, topic: str, disturb: Callable[[], None]) -> float:
    """Seconds between the last success before disturb() and the first lasting one after it."""
    with Sender(group, topic) as sender:
        sender.wait_answered(0.0, QUIET_SENDS)
        began = time.perf_counter()
        disturb()
        sender.wait_answered(time.perf_counter(), QUIET_SENDS)
    answered = [at for at in sender.answered_at if at >= began - ANSWER_S]
    return max(after - before for before, after in itertools.pairwise(answered))


def broker_killed(group: Group, topic: str) -> float:
    """SIGKILL of the master's broker, which is restarted at once, as a supervisor would do."""
    group.wait_in_sync()
    master = group.master

    def disturb() -> None:
        master.kill("broker")
        master.start("broker")

    return outage(group, topic, disturb)


def node_lost(group: Group, topic: str) -> float:
    """SIGKILL of all services of the master; they start again when the other node serves."""
    group.wait_in_sync()
    master = group.master
    took_s = outage(group, topic, master.kill)
    master.start()
    return took_s


def switched(group: Group, topic: str) -> float:
    """A planned switchover to the other node."""
    group.wait_in_sync()
    url = f"http://{HOST}:{group.master.ports['ha']}/v1/cluster/switchover"
    order = urllib.request.Request(url, b"{}", {"Content-Type": "application/json"}, method="POST")

    def disturb() -> None:
        with urllib.request.urlopen(order, timeout=OUTAGE_MAX_S) as answer:
            answer.read()

    return outage(group, topic, disturb)
