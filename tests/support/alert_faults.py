"""The faults of the alert drill, and the alerts that must be notified for them."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Callable
from typing import Final, NamedTuple

from tests.support.alert_clusters import OBJECTIVES_MS, PACE, TOPIC, Clusters
from tests.support.alert_load import consuming
from tests.support.alert_stage import Stage, Target

SLOW_SHARE: Final = 0.7
CLI_SESSION_S: Final = 30.0
STALL_S: Final = 60.0
"""A queue counts as stuck after this time at the earliest, whatever the speed of watching."""
Key = tuple[str, str, str]
"""(alert, cluster, consumer group)"""


class Fault(NamedTuple):
    """One fault: how it is planted and cleared, and which alerts it must cause."""

    name: str
    notified: Key
    """The one alert that is notified."""
    plant: Callable[[], None]
    clear: Callable[[], None] | None
    """None: not cleared, because that is expensive."""
    true_after_s: float
    """Upper bound of the time until the alert's condition holds; the speed of watching does not
    matter."""
    watched: str = "0s"
    """The range of its expression."""
    fires_too: frozenset[str] = frozenset()
    """Alerts that fire as well but are not notified."""


def faults_of(found: Clusters, stage: Stage) -> list[Fault]:
    """Faults that are planted at the same time."""
    url = found.consumers.api_url
    return [
        Fault(
            "consumer dead",
            ("TidemarkGroupStopped", "consumers", "dead"),
            found.kill_consumer,
            found.start_consumer_again,
            CLI_SESSION_S + OBJECTIVES_MS["dead"] / 1000,
        ),
        Fault(
            "consumer slow",
            ("TidemarkGroupFallingBehind", "consumers", "slow"),
            lambda: found.load.start(
                "slow", consuming(url, TOPIC, "slow", per_s=PACE * SLOW_SHARE)
            ),
            found.read_faster,
            OBJECTIVES_MS["slow"] / 1000 / (1 - SLOW_SHARE),
            "5m",
        ),
        Fault(
            "consumer stands still",
            ("TidemarkGroupStalled", "consumers", "stuck"),
            lambda: found.load.start("stuck", consuming(url, TOPIC, "stuck", stands_still=True)),
            None,
            STALL_S + stage.seconds("1m"),
            fires_too=frozenset({"TidemarkGroupFallingBehind", "TidemarkGroupLagObjective"}),
        ),
        Fault(
            "reput stopped",
            ("TidemarkTargetDown", "reput", ""),
            lambda: found.reput.pause("reput"),
            found.start_reput_again,
            0.0,
            fires_too=frozenset({"TidemarkDispatchStuck"}),
        ),
        Fault(
            "disk filling",
            ("TidemarkStoreNearlyFull", "full", ""),
            found.fill,
            found.ballast.unlink,
            5.0,
            fires_too=frozenset({"TidemarkNotReady", "TidemarkSendsFail", "TidemarkTimerOverdue"}),
        ),
        Fault(
            "slave cut off",
            ("TidemarkUnderReplicated", "cut", ""),
            found.cut_off,
            found.heal,
            10.0,
        ),
    ]


class SecondMaster:
    """A fake process that claims to be master as well."""

    TEXT: Final = (
        "# HELP tidemark_ha_role 1 for what this node is.\n# TYPE tidemark_ha_role gauge\n"
        'tidemark_ha_role{role="master"} 1\n'
    )

    def __init__(self) -> None:
        text = self.TEXT.encode()

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(200)
                self.send_header("Content-Type", "text/plain; version=0.0.4")
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, format: str, *args: object) -> None:
                """Say nothing."""

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.target = Target("healthy", "g0", "planted", "ha", int(self._server.server_address[1]))
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop the fake process."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)
