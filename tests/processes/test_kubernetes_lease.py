"""A group of real nodes with a lease on a Kubernetes API server, which works well or badly."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final
from urllib.request import Request, urlopen

import pytest

from tests.support.cluster import Cluster
from tests.support.node import wait_until

NAMESPACE: Final = "shop"
LEASE: Final = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/test-g0"


class Api:
    """The API server as a process of its own."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "drills.lease_api", "--seed", "7"],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        self.url = self._process.stdout.readline().strip()

    def faults(self, **values: object) -> None:
        """Set the API server's faults from now on."""
        self._ask(Request(self.url + "/faults", json.dumps(values).encode(), method="PUT"))

    def answers(self, what: str) -> int:
        """Return the number of answers of a kind, such as ``PUT 409``."""
        count: int = self._ask(Request(self.url + "/faults"))["answers"].get(what, 0)
        return count

    def lease(self) -> dict[str, Any]:
        return self._ask(Request(self.url + LEASE, headers={"By-Hand": "1"}))

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()

    def _ask(self, request: Request) -> dict[str, Any]:
        with urlopen(request, timeout=60) as answer:
            found: dict[str, Any] = json.load(answer)
            return found


@pytest.fixture
def api() -> Iterator[Api]:
    served = Api()
    yield served
    served.close()


def test_a_group_lives_through_errors_and_lost_answers_and_ends_its_term_without_the_server(
    tmp_path: Path, api: Api
) -> None:
    lease = {
        "lease": "kubernetes",
        "kubernetes_url": api.url,
        "kubernetes_namespace": NAMESPACE,
    }
    with Cluster(tmp_path, profile="default", cluster=lease) as cluster:
        cluster.start()
        master = cluster.wait_master()
        cluster.wait_in_sync()
        stored = api.lease()
        assert stored["spec"]["holderIdentity"].startswith(f"{master}/")
        members = json.loads(stored["metadata"]["annotations"]["isr"])
        assert [node for node, _ in members] == ["n0", "n1"]

        api.faults(error_rate=0.3)
        renewed = api.answers("PUT 200")
        wait_until(lambda: api.answers("PUT 200") > renewed + 3, "renewals between errors", 60)

        # Enough consecutive errors end a term: the present master is looked up.
        api.faults()
        master = cluster.wait_master()
        cluster.wait_in_sync()
        epoch = cluster.epoch()

        # Applied, but the answer was lost: the next read finds its own success.
        lost = api.answers("PUT none")
        api.faults(drop_answers=True, only_methods=["PUT"])
        wait_until(lambda: api.answers("PUT none") > lost, "an answer to be lost", 60)
        api.faults()
        renewed = api.answers("PUT 200")
        wait_until(lambda: api.answers("PUT 200") > renewed, "the next renewal", 60)
        assert (cluster.epoch(), cluster.serving()) == (epoch, master)

        # No other node may be elected, and the master stops before one could be.
        api.faults(drop_requests=True)
        wait_until(lambda: cluster.serving() is None, "the master to stop", 60)
        api.faults()
        assert cluster.wait_master() in cluster.names
        assert cluster.epoch() > epoch
