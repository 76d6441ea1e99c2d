"""Settings: the profile's defaults, rules between fields, the address that records carry."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.broker.config import ENV_PREFIX, BrokerConfig, LocalBrokerConfig
from shared.runtime.config import load
from tidemark.errors import BadConfig


def test_the_local_profile_has_small_files_and_makes_topics(tmp_path: Path) -> None:
    config = load(LocalBrokerConfig, None, ENV_PREFIX, {"store_dir": tmp_path}, environment={})
    assert config.auto_create_topics
    assert config.store.commit_log_file_size == 64 << 20
    assert (config.store.index_slots, config.store.index_entries) == (50_000, 200_000)
    assert not load(BrokerConfig, environment={}).auto_create_topics


def test_a_file_and_the_environment_win_over_the_profile(tmp_path: Path) -> None:
    path = tmp_path / "broker.toml"
    path.write_text("[store]\ncommit_log_file_size = 1048576\n")
    environment = {"TIDEMARK_BROKER_AUTO_CREATE_TOPICS": "false"}
    config = load(LocalBrokerConfig, path, ENV_PREFIX, environment=environment)
    assert config.store.commit_log_file_size == 1 << 20
    assert config.store.index_slots == 50_000
    assert not config.auto_create_topics


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ('advertised_host = "broker.example"', "broker.example"),
        ("request_size_max = 2048", "request_size_max"),
        ("[store]\ncommit_log_file_size = 100", "commit_log_file_size"),
        ('[store]\ndelay_levels = "1s 5x"', "5x"),
        ("flush_interval = 5", "flush_interval"),
        ("port = 99999", "port"),
    ],
)
def test_a_mistake_is_named(tmp_path: Path, text: str, named: str) -> None:
    path = tmp_path / "broker.toml"
    path.write_text(text)
    with pytest.raises(BadConfig, match=named):
        load(BrokerConfig, path, environment={})


@pytest.mark.parametrize(
    ("host", "advertised", "text"),
    [
        ("127.0.0.1", "", "127.0.0.1:8080"),
        ("0.0.0.0", "", "127.0.0.1:8080"),
        ("0.0.0.0", "10.0.0.7", "10.0.0.7:8080"),
        ("localhost", "", "127.0.0.1:8080"),
        ("::1", "", "[::1]:8080"),
    ],
)
def test_records_carry_an_address_that_can_be_reached(
    host: str, advertised: str, text: str
) -> None:
    config = BrokerConfig(host=host, advertised_host=advertised)
    assert config.store_host(8080).text == text


def test_the_reserve_is_a_quarter_of_a_small_file() -> None:
    assert BrokerConfig().reserve == 16 << 20
    assert LocalBrokerConfig().reserve == 16 << 20


GROUP = """
[cluster]
node = "a"
nodes = ["a=127.0.0.1:1", "b=127.0.0.1:2"]
api = ["a=http://a", "b=http://b"]
admin = ["a=http://a", "b=http://b"]
secret_file = "/dev/null"
lease_dir = "/tmp"
"""


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (GROUP, "a node of a group"),
        ('[store]\nvisible_after = "confirmed"', "a standalone node confirms nothing"),
        (
            f'message_size_max = 8388608\n[store]\nvisible_after = "confirmed"\n{GROUP}',
            "message_size_max",
        ),
    ],
)
def test_confirmed_belongs_to_groups_and_groups_to_confirmed(
    tmp_path: Path, text: str, named: str
) -> None:
    path = tmp_path / "broker.toml"
    path.write_text(text)
    with pytest.raises(BadConfig, match=named):
        load(BrokerConfig, path, environment={})


def test_a_node_of_a_group_knows_its_place(tmp_path: Path) -> None:
    path = tmp_path / "broker.toml"
    path.write_text(f'[store]\nvisible_after = "confirmed"\n{GROUP}')
    config = load(BrokerConfig, path, environment={})
    assert config.cluster.grouped
    assert config.cluster.own.api == "http://a"
    assert not BrokerConfig().cluster.grouped


@pytest.mark.parametrize(
    ("names", "text"),
    [
        ({"urls": ["names-1:9870"]}, "names.urls: 'names-1:9870' is not a URL"),
        ({"urls": ["http://a/v1"]}, "names.urls"),
        ({"urls": [f"http://n{number}" for number in range(17)]}, "17 URLs, 16 are allowed"),
        ({"api": "b0:8080"}, "names.api"),
    ],
)
def test_wrong_name_services_are_refused(names: dict[str, object], text: str) -> None:
    with pytest.raises(BadConfig, match=text):
        load(BrokerConfig, None, "", {"names": names})


@pytest.mark.parametrize(
    ("given", "url"),
    [
        ({}, "http://127.0.0.1:9000"),
        ({"host": "0.0.0.0"}, "http://127.0.0.1:9000"),
        ({"host": "::"}, "http://[::1]:9000"),
        ({"host": "0.0.0.0", "advertised_host": "10.0.0.7"}, "http://10.0.0.7:9000"),
        ({"host": "0.0.0.0", "names": {"api": "http://b0:80"}}, "http://b0:80"),
    ],
)
def test_clients_get_an_address_that_they_can_reach(given: dict[str, object], url: str) -> None:
    assert load(BrokerConfig, None, "", given).own_api(9000) == url
