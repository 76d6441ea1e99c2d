"""The files that tell Grafana where dashboards and metrics are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from deploy.grafana.drawing import SCRAPE_PERIOD
from tests.support.dashboards import BOARDS, ROOT

PROVISIONING = ROOT / "deploy/grafana/provisioning"


def _read(name: str) -> Any:
    return yaml.safe_load((PROVISIONING / name).read_text())


def test_the_data_source_is_the_one_that_the_boards_choose_first() -> None:
    provisioned = _read("datasources/tidemark.yaml")
    assert provisioned["apiVersion"] == 1
    (source,) = provisioned["datasources"]
    assert source["type"] == "prometheus"
    assert source["access"] == "proxy"
    for board in BOARDS.values():
        variable = board["templating"]["list"][0]
        assert variable["query"] == "prometheus"
        assert variable["current"]["value"] == source["uid"]


def test_the_data_source_knows_the_scrape_period() -> None:
    (source,) = _read("datasources/tidemark.yaml")["datasources"]
    scraped = yaml.safe_load((ROOT / "deploy/prometheus/prometheus.yml").read_text())
    assert source["jsonData"]["timeInterval"] == SCRAPE_PERIOD
    assert scraped["global"]["scrape_interval"] == SCRAPE_PERIOD


def test_dashboards_are_read_from_one_directory_and_not_changed_from_outside() -> None:
    provisioned = _read("dashboards/tidemark.yaml")
    assert provisioned["apiVersion"] == 1
    (provider,) = provisioned["providers"]
    assert provider["type"] == "file"
    assert Path(provider["options"]["path"]).is_absolute()
    assert provider["allowUiUpdates"] is False


def test_every_board_has_a_config_map_of_its_own_with_the_label_that_is_looked_for() -> None:
    made = yaml.safe_load((ROOT / "deploy/grafana/dashboards/kustomization.yaml").read_text())
    options = made["generatorOptions"]
    assert options["labels"]["grafana_dashboard"] == "1"
    assert options["disableNameSuffixHash"], "an old copy would stay beside the new one"
    files = [file for each in made["configMapGenerator"] for file in each["files"]]
    assert sorted(files) == sorted(BOARDS)
    for each in made["configMapGenerator"]:
        (file,) = each["files"]
        uid = BOARDS[Path(file).name]["uid"]
        assert each["name"] == uid.replace("tidemark-", "tidemark-dashboard-")
