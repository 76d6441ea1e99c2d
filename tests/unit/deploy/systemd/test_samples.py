"""The sample configurations beside the units: each service reads its own, and they fit together."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from services.broker import config as broker
from services.reput import config as reput
from shared.runtime.config import load

SAMPLES: Final = Path(__file__).resolve().parents[4] / "deploy" / "systemd"
KINDS: Final = sorted(path.parent.name for path in SAMPLES.glob("*/broker.toml"))
STORE, RUN = Path("/var/lib/tidemark"), Path("/run/tidemark")
"""StateDirectory and RuntimeDirectory of the units: nothing else can be written."""


def of_broker(kind: str) -> broker.BrokerConfig:
    return load(broker.BrokerConfig, SAMPLES / kind / "broker.toml", broker.ENV_PREFIX, {})


def of_reput(kind: str) -> reput.ReputConfig:
    return load(reput.ReputConfig, SAMPLES / kind / "reput.toml", reput.ENV_PREFIX, {})


@pytest.mark.parametrize("kind", KINDS)
def test_processes_of_a_node_use_the_same_store_where_the_units_can_write(kind: str) -> None:
    served, dispatched = of_broker(kind), of_reput(kind)
    assert served.store_dir.parent == STORE
    assert served.run_dir == RUN
    assert dispatched.store_dir == served.store_dir
    assert dispatched.run_dir == served.run_dir
    assert dispatched.store == served.store


def test_a_node_alone_is_reached_from_its_machine_only() -> None:
    served = of_broker("node")
    assert (served.host, served.admin_host) == ("127.0.0.1", "127.0.0.1")
    assert not served.cluster.grouped
