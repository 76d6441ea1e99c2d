"""Variables and links: the same on all boards, and with existing targets."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest

from deploy.grafana.drawing import LETTERS
from deploy.grafana.frame import ANNOTATIONS, VARIABLES
from shared.metrics.catalogue import BY_NAME
from shared.metrics.catalogue.analytics import ANALYTICS
from tests.support.dashboard_listing import BUILT_IN, expressions, fill
from tests.support.dashboards import BOARDS, RECORDED, VALUES, graphs
from tests.support.promql import metrics, yields

UIDS = {board["uid"] for board in BOARDS.values()}
WANTED = ["datasource", "cluster", "broker", "group", "topic"]
each_board = pytest.mark.parametrize("board", BOARDS.values(), ids=BOARDS)


def _urls(board: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Title and URL of every link of a board, and the panel, empty for the board's own."""
    for link in board["links"]:
        yield link["title"], link["url"], {}
    for panel in graphs(board):
        for link in panel.get("links", ()):
            yield link["title"], link["url"], panel
        for override in panel["fieldConfig"]["overrides"]:
            for each in override["properties"]:
                if each["id"] == "links":
                    for link in each["value"]:
                        yield link["title"], link["url"], panel


@each_board
def test_every_board_has_the_same_variables(board: dict[str, Any]) -> None:
    variables = board["templating"]["list"]
    assert [variable["name"] for variable in variables] == WANTED
    assert variables == next(iter(BOARDS.values()))["templating"]["list"]
    for variable in variables[1:]:
        assert variable["multi"]
        assert variable["includeAll"]
        assert variable["allValue"] == ".*"
        assert variable["label"]


@each_board
def test_queries_use_only_variables_that_are_defined(board: dict[str, Any]) -> None:
    texts = [target["expr"] for panel in graphs(board) for target in panel["targets"]]
    texts += [annotation["expr"] for annotation in board["annotations"]["list"]]
    texts += [
        variable["query"]["query"]
        for variable in board["templating"]["list"]
        if variable["type"] == "query"
    ]
    used = {name for text in texts for name in re.findall(r"\$\{?(\w+)", text)}
    assert used - set(WANTED) - set(BUILT_IN) == set()


def of_no_set(expr: str) -> bool:
    """Whether all it asks for is of name services, or of lag analytics as a whole.

    Neither belongs to a broker set.
    """
    if 'service="names"' in expr:
        return True
    return all(
        family is not None and family in ANALYTICS and "broker" not in family.labels
        for family in (BY_NAME.get(name.removesuffix("_bucket")) for name in _named(expr))
    )


def _named(expr: str) -> set[str]:
    return metrics(fill(expr, dict.fromkeys(re.findall(r"\$(\w+)", expr), "1m"))) - {"up"}


@each_board
def test_a_chosen_cluster_and_broker_set_narrow_every_panel(board: dict[str, Any]) -> None:
    for panel in graphs(board):
        for target in panel["targets"]:
            assert 'cluster=~"$cluster"' in target["expr"], panel["title"]
            if "ALERTS" not in target["expr"] and not of_no_set(target["expr"]):
                assert 'broker=~"$broker"' in target["expr"], panel["title"]


def test_variables_ask_for_labels_that_the_metric_has() -> None:
    for name, _, query, _ in VARIABLES:
        found = re.fullmatch(r"label_values\((.*), (\w+)\)", query)
        assert found is not None
        assert found[2] == name
        assert name in yields(fill(found[1], VALUES)).labels


def test_a_variable_only_depends_on_those_to_its_left() -> None:
    for index, (_, _, query, _) in enumerate(VARIABLES):
        used = set(re.findall(r"\$(\w+)", query))
        assert used <= {name for name, *_ in VARIABLES[:index]}


@each_board
def test_every_link_leads_to_a_board_that_there_is(board: dict[str, Any]) -> None:
    found = list(_urls(board))
    for title, url, _ in found:
        match = re.match(r"/d/([\w-]+)", url)
        assert match is not None, title
        assert match[1] in UIDS, title
    assert {urlsplit(url).path for _, url, panel in found if not panel} == {
        f"/d/{uid}" for uid in UIDS - {board["uid"]}
    }, "every other board, once"


@each_board
def test_a_link_takes_the_chosen_values_along(board: dict[str, Any]) -> None:
    for link in board["links"]:
        assert link["includeVars"]
        assert link["keepTime"]
    for title, url, panel in _urls(board):
        query = urlsplit(url).query
        if not query:
            continue
        # ${name:queryparam} becomes var-name=…; it has no = before that.
        whole = re.findall(r"\$\{(\w+):queryparam\}", query)
        given = [name for name, _ in parse_qsl(re.sub(r"\$\{(\w+):queryparam\}&?", "", query))]
        named = whole + [name.removeprefix("var-") for name in given if name.startswith("var-")]
        assert {"datasource", "cluster"} <= set(named) <= set(WANTED), title
        assert len(named) == len(set(named)), title
        assert "${__url_time_range}" in query, title
        columns = set(panel["transformations"][-1]["options"]["renameByName"].values())
        fields = re.findall(r"__data\.fields(?:\.(\w+)|\[\"([^\"]+)\"\])", query)
        assert {one or other for one, other in fields} <= columns, title


def test_from_now_to_the_next_board_is_one_click() -> None:
    cluster = BOARDS["tidemark-cluster.json"]
    stats = [panel for panel in graphs(cluster) if panel["type"] == "stat"]
    assert len(stats) == 8
    assert all(panel.get("links") for panel in stats if panel["title"] not in ("Pages", "Tickets"))


def test_marks_on_graphs_are_sensible_queries_with_labels_that_there_are() -> None:
    for name, _, expr, text in ANNOTATIONS:
        found = yields(fill(expr, VALUES), RECORDED)
        assert set(re.findall(r"\{\{(\w+)\}\}", text)) <= found.labels, name
        assert metrics(fill(expr, VALUES))


def test_the_list_of_expressions_is_whole_and_filled_in() -> None:
    given = {"cluster": "c", "broker": "b", "group": "g", "topic": "t"}
    found = expressions(given)
    asked = sum(len(panel["targets"]) for board in BOARDS.values() for panel in graphs(board))
    assert len(found) == asked + len(ANNOTATIONS)
    for each in found:
        assert "$" not in each.expr
        assert 'cluster=~"c"' in each.expr
        assert each.letter in LETTERS


def test_an_unknown_variable_in_an_expression_is_a_mistake() -> None:
    with pytest.raises(KeyError, match="unknown"):
        fill('up{x="$unknown"}', VALUES)
