"""The committed JSON: current, small enough for a ConfigMap, and valid for Grafana."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard

from deploy.grafana.boards import BOARDS as WRITTEN
from deploy.grafana.frame import texts, write
from tests.support.dashboards import BOARDS, DIRECTORY, graphs, panels

CONFIG_MAP_SIZE_MAX = 1024 * 1024
UID_LENGTH_MAX = 40
SCHEMA_VERSION = 41
"""Of Grafana 11.6."""
each_board = pytest.mark.parametrize("board", BOARDS.values(), ids=BOARDS)


def test_the_committed_files_are_what_the_boards_say() -> None:
    committed = {path.name: path.read_text() for path in DIRECTORY.glob("*.json")}
    assert committed == texts(), "run `make dashboards` and commit deploy/grafana/dashboards"


def test_writing_twice_changes_nothing_and_leaves_no_file_of_a_board_that_is_gone(
    tmp_path: Path,
) -> None:
    (tmp_path / "tidemark-gone.json").write_text("{}")
    write(tmp_path)
    first = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    write(tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == first
    assert set(first) == {f"{board.uid}.json" for board in WRITTEN}


def test_uids_and_titles_are_unique_and_fit_grafana() -> None:
    uids = [board["uid"] for board in BOARDS.values()]
    titles = [board["title"] for board in BOARDS.values()]
    assert len(set(uids)) == len(uids)
    assert len(set(titles)) == len(titles)
    for uid in uids:
        assert 0 < len(uid) <= UID_LENGTH_MAX
        assert uid.replace("-", "").isalnum()


@each_board
def test_a_board_is_of_the_schema_that_its_grafana_reads(board: dict[str, Any]) -> None:
    assert board["schemaVersion"] == SCHEMA_VERSION
    assert board.get("id") is None, "a number of one installation; provisioning gives its own"
    assert board["tags"] == ["tidemark"]
    assert board["refresh"]
    assert board["description"]


def _lost(before: Any, after: Any, at: str) -> list[str]:
    """Where after lacks something of before; what a reader adds of itself is no loss."""
    match before, after:
        case dict(), dict():
            return [
                each
                for key, value in before.items()
                for each in _lost(value, after.get(key), f"{at}/{key}")
            ]
        case list(), list() if len(before) == len(after):
            return [
                each
                for index, value in enumerate(before)
                for each in _lost(value, after[index], f"{at}/{index}")
            ]
    return [] if before == after else [at]


@each_board
def test_the_schema_knows_every_field_of_a_board(board: dict[str, Any]) -> None:
    # Read as the models of the schema and written again, nothing is lost: no field is made up.
    register_default_plugins()
    known = copy.deepcopy(board)
    for annotation in known["annotations"]["list"]:
        # Of Prometheus' own annotations, which the schema leaves open.
        assert annotation.pop("titleFormat")
        assert annotation.pop("textFormat")
    model = Dashboard.from_json(copy.deepcopy(known))
    assert _lost(known, json.loads(JSONEncoder().encode(model)), "") == []


@pytest.mark.parametrize("name", BOARDS)
def test_a_board_fits_into_a_config_map(name: str) -> None:
    # The API server counts the object's JSON: quotes and line ends of the text are escaped in it.
    assert len((DIRECTORY / name).read_text()) * 1.5 < CONFIG_MAP_SIZE_MAX


@each_board
def test_titles_of_panels_are_unique_within_a_board(board: dict[str, Any]) -> None:
    titles = [panel["title"] for panel in panels(board)]
    assert sorted(set(titles)) == sorted(titles)


@each_board
def test_no_panel_is_without_a_description(board: dict[str, Any]) -> None:
    for panel in graphs(board):
        assert len(panel["description"]) > 30, panel["title"]
        assert panel["description"].rstrip().endswith("."), panel["title"]


@each_board
def test_no_panel_is_without_queries_and_no_letter_is_used_twice(board: dict[str, Any]) -> None:
    for panel in graphs(board):
        letters = [target["refId"] for target in panel["targets"]]
        assert letters == sorted(set(letters)), panel["title"]
        assert letters, panel["title"]


@each_board
def test_the_data_source_is_the_variable_everywhere(board: dict[str, Any]) -> None:
    wanted = {"type": "prometheus", "uid": "${datasource}"}
    for panel in panels(board):
        assert panel["datasource"] == wanted, panel["title"]
        for target in panel.get("targets", ()):
            assert target["datasource"] == wanted, panel["title"]
    for annotation in board["annotations"]["list"]:
        assert annotation["datasource"] == wanted
    for variable in board["templating"]["list"]:
        assert variable["type"] == "datasource" or variable["datasource"] == wanted


@each_board
def test_an_unknown_value_is_never_drawn_as_zero(board: dict[str, Any]) -> None:
    for panel in graphs(board):
        defaults = panel["fieldConfig"]["defaults"]
        match panel["type"]:
            case "timeseries":
                assert defaults["custom"]["spanNulls"] is False, panel["title"]
                assert not defaults["custom"].get("insertNulls"), panel["title"]
            case "stat":
                assert defaults["noValue"] not in ("", "0"), panel["title"]
                assert panel["options"]["reduceOptions"]["calcs"] == ["last"], (
                    "lastNotNull would show a value that is gone"
                )
            case "state-timeline":
                assert not defaults["custom"].get("spanNulls"), panel["title"]
        specials = [each for each in defaults.get("mappings", ()) if each["type"] == "special"]
        for special in specials:
            assert special["options"]["match"] == "null+nan"
        if panel["type"] in ("stat", "state-timeline"):
            assert specials, panel["title"]


@each_board
def test_thresholds_begin_with_a_base_and_ascend(board: dict[str, Any]) -> None:
    for panel in graphs(board):
        thresholds = panel["fieldConfig"]["defaults"].get("thresholds")
        if thresholds is None:
            assert panel["type"] in ("heatmap", "table"), panel["title"]
            continue
        first, *others = [step["value"] for step in thresholds["steps"]]
        assert first is None, panel["title"]
        assert others == sorted(set(others)), panel["title"]
