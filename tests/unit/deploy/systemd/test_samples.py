"""The sample configurations beside the units: each service reads its own, and they fit together."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from services.broker import config as broker
from services.ha import config as ha
from services.names import config as names
from services.reput import config as reput
from shared.runtime.config import load

SAMPLES: Final = Path(__file__).resolve().parents[4] / "deploy" / "systemd"
KINDS: Final = sorted(path.parent.name for path in SAMPLES.glob("*/broker.toml"))
GROUPED: Final = sorted(path.parent.name for path in SAMPLES.glob("*/ha.toml"))
STORE, RUN = Path("/var/lib/tidemark"), Path("/run/tidemark")
"""StateDirectory and RuntimeDirectory of the units: nothing else can be written."""


def of_broker(kind: str) -> broker.BrokerConfig:
    return load(broker.BrokerConfig, SAMPLES / kind / "broker.toml", broker.ENV_PREFIX, {})


def of_reput(kind: str) -> reput.ReputConfig:
    return load(reput.ReputConfig, SAMPLES / kind / "reput.toml", reput.ENV_PREFIX, {})


def of_ha(kind: str) -> ha.HaConfig:
    return load(ha.HaConfig, SAMPLES / kind / "ha.toml", ha.ENV_PREFIX, {})


def test_there_is_a_sample_for_each_way_to_run() -> None:
    assert KINDS == ["cluster", "group", "node"]
    assert GROUPED == ["cluster", "group"]


@pytest.mark.parametrize("kind", KINDS)
def test_processes_of_a_node_use_the_same_store_where_the_units_can_write(kind: str) -> None:
    served, dispatched = of_broker(kind), of_reput(kind)
    assert served.store_dir.parent == STORE
    assert served.run_dir == RUN
    assert dispatched.store_dir == served.store_dir
    assert dispatched.run_dir == served.run_dir
    assert dispatched.store == served.store


@pytest.mark.parametrize("kind", GROUPED)
def test_ha_has_the_same_group_and_store_as_the_broker(kind: str) -> None:
    served, replicated = of_broker(kind), of_ha(kind)
    assert replicated.cluster == served.cluster
    assert replicated.store == served.store
    assert replicated.store_dir == served.store_dir
    assert replicated.run_dir == served.run_dir
    assert served.cluster.lease == "etcd"


@pytest.mark.parametrize("kind", GROUPED)
def test_other_machines_reach_the_addresses_of_a_node(kind: str) -> None:
    served, replicated = of_broker(kind), of_ha(kind)
    own = served.cluster.own
    assert served.host == "0.0.0.0"
    assert own.host == served.advertised_host == replicated.admin_host
    assert own.api == f"http://{served.advertised_host}:{served.port}"
    assert own.admin == f"http://{replicated.admin_host}:{replicated.admin_port}"


def test_a_node_alone_is_reached_from_its_machine_only() -> None:
    served = of_broker("node")
    assert (served.host, served.admin_host) == ("127.0.0.1", "127.0.0.1")
    assert not served.cluster.grouped


def test_brokers_register_with_the_name_services_of_the_sample() -> None:
    found = load(names.NamesConfig, SAMPLES / "cluster" / "names.toml", names.ENV_PREFIX, {})
    served = of_broker("cluster")
    assert set(served.names.urls) == {found.url, *found.peers}
    assert found.cluster == served.cluster.name
    assert served.cluster.group in found.groups
    assert found.secret_file == served.cluster.secret_file
