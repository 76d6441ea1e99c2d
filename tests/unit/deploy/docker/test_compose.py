"""The laptop's cluster: settings load, names and ports agree, every container is confined."""

from __future__ import annotations

import os
import shutil
import subprocess
from typing import Any, Final
from urllib.parse import urlsplit

import click
import pytest
import yaml

from analytics.main import jobs
from services.broker.config import ENV_PREFIX as BROKER_PREFIX
from services.broker.config import BrokerConfig
from services.ha.config import ENV_PREFIX as HA_PREFIX
from services.ha.config import HaConfig
from services.reput.config import ENV_PREFIX as REPUT_PREFIX
from services.reput.config import ReputConfig
from shared.runtime.config import load
from tests.support.dockerfile import DOCKERFILE, ROOT, pairs, stages
from tests.support.for_each import for_each

HERE: Final = ROOT / "deploy/docker"
COMPOSE: Final[dict[str, Any]] = yaml.safe_load((HERE / "compose.yaml").read_text())
SERVICES: Final[dict[str, dict[str, Any]]] = COMPOSE["services"]
NODES: Final = ("n0", "n1")
KINDS: Final = ("broker", "reput", "ha")
OURS: Final = tuple(f"{node}-{kind}" for node in NODES for kind in KINDS)


def settings(name: str) -> Any:
    """The settings that the container's process reads: its file and its environment."""
    kind = name.partition("-")[2]
    cls, prefix = {
        "broker": (BrokerConfig, BROKER_PREFIX),
        "reput": (ReputConfig, REPUT_PREFIX),
        "ha": (HaConfig, HA_PREFIX),
    }[kind]
    environment = SERVICES[name].get("environment", {})
    return load(cls, HERE / f"node/{kind}.toml", prefix, environment=environment)


@pytest.mark.parametrize("name", OURS)
def test_every_container_runs_its_program_with_settings_that_load(name: str) -> None:
    kind = name.partition("-")[2]
    assert SERVICES[name]["command"] == [
        f"tidemark-{kind}",
        "--config",
        f"/etc/tidemark/{kind}.toml",
    ]
    assert str(settings(name).store_dir) == "/var/lib/tidemark"


def test_settings_that_shape_files_are_the_same_for_all() -> None:
    assert len({settings(name).store for name in OURS}) == 1
    assert settings("n0-reput").store.visible_after == "confirmed"


def test_broker_and_ha_of_a_node_know_the_same_group_and_only_the_node_differs() -> None:
    for node in NODES:
        assert settings(f"{node}-broker").cluster == settings(f"{node}-ha").cluster
        assert settings(f"{node}-broker").cluster.node == node
    assert len({settings(f"{node}-broker").advertised_host for node in NODES}) == len(NODES)


def test_nodes_reach_each_other_by_the_names_of_their_containers() -> None:
    for replica in settings("n0-ha").cluster.replicas:
        assert replica.host == f"{replica.name}-ha"
        assert replica.host in SERVICES
        assert settings(f"{replica.name}-ha").host == "0.0.0.0"


def test_advertised_ports_are_open_on_this_machine_only() -> None:
    for replica in settings("n0-broker").cluster.replicas:
        for url, name, inside in (
            (replica.api, f"{replica.name}-broker", settings(f"{replica.name}-broker").port),
            (replica.admin, f"{replica.name}-ha", settings(f"{replica.name}-ha").admin_port),
        ):
            parts = urlsplit(url)
            assert parts.hostname == "localhost"
            assert SERVICES[name]["ports"] == [f"127.0.0.1:{parts.port}:{inside}"]


def test_the_command_line_uses_the_advertised_addresses() -> None:
    cluster = settings("n0-broker").cluster
    urls = ",".join(replica.api for replica in cluster.replicas)
    assert SERVICES["cli"]["environment"]["TIDEMARK_URL"] == urls
    assert SERVICES["cli"]["network_mode"] == "host"


@for_each("name", SERVICES)
def test_every_container_is_confined(name: str) -> None:
    service = SERVICES[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert "user" not in service, "the image says who it runs as"
    assert "privileged" not in service
    for port in service.get("ports", []):
        assert port.startswith("127.0.0.1:"), f"{name} opens {port} to others"


def test_the_three_of_a_node_share_its_volume_and_its_sockets_and_nodes_share_neither() -> None:
    own = {node: SERVICES[f"{node}-broker"]["volumes"] for node in NODES}
    for node in NODES:
        assert all(SERVICES[f"{node}-{kind}"]["volumes"] == own[node] for kind in KINDS)
        assert own[node][:2] == [f"{node}-data:/var/lib/tidemark", f"{node}-run:/run/tidemark"]
    shared = set(own["n0"]) & set(own["n1"])
    assert shared == {"group:/var/lib/tidemark-group", "./node:/etc/tidemark:ro"}
    cluster = settings("n0-ha").cluster
    for path in (cluster.secret_file, cluster.lease_dir):
        assert str(path).startswith("/var/lib/tidemark-group/")


@for_each("name", SERVICES)
def test_every_volume_is_declared_and_every_mounted_file_exists(name: str) -> None:
    for volume in SERVICES[name].get("volumes", []):
        source = volume.partition(":")[0]
        if source.startswith("."):
            assert (HERE / source).exists(), f"{name} mounts {source}"
        else:
            assert source in COMPOSE["volumes"]


@pytest.mark.parametrize("kind", KINDS)
def test_prometheus_finds_every_process_by_its_name_and_port(kind: str) -> None:
    config = yaml.safe_load((ROOT / "deploy/prometheus/prometheus.yml").read_text())
    job = next(job for job in config["scrape_configs"] if job["job_name"] == f"tidemark-{kind}")
    files = [path for found in job["file_sd_configs"] for path in found["files"]]
    assert files == [f"targets/{kind}.yml"]
    assert yaml.safe_load((HERE / files[0]).read_text()) == [
        {
            "targets": [f"{node}-{kind}:{settings(f'{node}-{kind}').admin_port}"],
            "labels": {"cluster": "tidemark", "broker": "g0", "replica": node},
        }
        for node in NODES
    ]


def test_alertmanager_and_grafana_are_where_their_files_say() -> None:
    config = yaml.safe_load((ROOT / "deploy/prometheus/prometheus.yml").read_text())
    alerting = config["alerting"]["alertmanagers"][0]["static_configs"][0]["targets"]
    assert alerting == ["127.0.0.1:9093"]
    assert SERVICES["alertmanager"]["network_mode"] == "service:prometheus"
    provider = yaml.safe_load(
        (ROOT / "deploy/grafana/provisioning/dashboards/tidemark.yaml").read_text()
    )["providers"][0]
    assert (
        f"../grafana/dashboards:{provider['options']['path']}:ro"
        in (SERVICES["grafana"]["volumes"])
    )
    source = yaml.safe_load(
        (ROOT / "deploy/grafana/provisioning/datasources/tidemark.yaml").read_text()
    )["datasources"][0]
    assert source["url"] == "$PROMETHEUS_URL"
    assert SERVICES["grafana"]["environment"]["PROMETHEUS_URL"] == "http://prometheus:9090"


def test_the_image_is_that_of_this_version_and_has_the_directories_that_are_mounted() -> None:
    image = pairs((HERE / ".env").read_text().splitlines()[-1])["TIDEMARK_IMAGE"]
    run = stages(DOCKERFILE.read_text())["run"]
    assert f"VERSION={image.rpartition(':')[2]}" in run.texts("ARG")
    assert all(SERVICES[name]["image"] == "${TIDEMARK_IMAGE}" for name in (*OURS, "cli", "group"))
    made = " ".join(run.texts("RUN"))
    for volume in SERVICES["n0-broker"]["volumes"]:
        assert volume.split(":")[1] in made, volume


def test_a_container_is_given_longer_to_end_than_reput_takes() -> None:
    for name in OURS:
        assert int(SERVICES[name]["stop_grace_period"].removesuffix("s")) > (
            settings("n0-reput").stop_timeout_s + 20
        )


def test_compose_itself_takes_the_file() -> None:
    if shutil.which("docker-compose") is None:
        reason = "docker-compose is not installed: apt-get install docker-compose"
        if os.environ.get("TIDEMARK_REQUIRE_ALL"):
            pytest.fail(reason)
        pytest.skip(reason)
    done = subprocess.run(
        ["docker-compose", "--file", HERE / "compose.yaml", "config"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    shown = yaml.safe_load(done.stdout)
    assert set(shown["services"]) == set(SERVICES)


ANALYTICS: Final = ("collect", "evaluate", "export", "report")


@pytest.mark.parametrize("name", ANALYTICS)
def test_jobs_of_lag_analytics_are_commands_of_the_program_and_on_request(name: str) -> None:
    service = SERVICES[name]
    program, job, *arguments = service["command"]
    assert program == "tidemark-analytics"
    command = jobs.get_command(click.Context(jobs), job)
    assert command is not None
    command.make_context(job, list(arguments))  # raises what is wrong with an option
    assert service["image"] == "${TIDEMARK_ANALYTICS_IMAGE}"
    assert service["profiles"] == ["report" if name == "report" else "analytics"]
    made = " ".join(stages(DOCKERFILE.read_text())["analytics"].texts("RUN"))
    for volume in service["volumes"]:
        assert volume.split(":")[1] in made
    version = (HERE / ".env").read_text().rpartition("TIDEMARK_ANALYTICS_IMAGE=")[2].split()[0]
    assert version == f"tidemark-analytics:{version.partition(':')[2]}"
    assert f"VERSION={version.partition(':')[2]}" in (
        stages(DOCKERFILE.read_text())["run"].texts("ARG")
    )
