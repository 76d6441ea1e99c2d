"""The OpenAPI document against the running server, in both directions.

schemathesis makes requests from the document, valid and invalid ones: no answer is a 500, every
answer is documented, allowed requests are not refused as malformed, and forbidden ones are not
accepted.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import positive_data_acceptance

from services.broker.api import api_document
from services.broker.api.messages import Rules
from shared.files.store_config import StoreConfig
from tests.support.node import Node

EXAMPLES: Final = 60
"""Requests per call and kind (valid, invalid): all calls together stay below a minute."""
RULES_BETWEEN_PARAMETERS: Final = {
    "find", "nack", "traceMessage", "joinGroup", "fetch", "commit", "resetGroup", "sendBatch"
}  # fmt: skip
"""Calls with a rule that OpenAPI cannot express: either key or unique_id; delay levels are
configured; a unique id is traced with its topic; no topic, or queue, is named twice; an offset
needs a queue; the body of a batch has wire entries.
"""
NOTHING_TO_GET_WRONG: Final = {
    "openapi", "getRetention", "getCluster", "getDrain", "drain", "undrain"
}  # fmt: skip
"""Calls without any input."""
EXPECTED: Final = {
    "openapi", "listTopics", "getTopic", "putTopic", "deleteTopic", "send", "sendBatch", "find",
    "pull", "offsetByTime", "getMessage", "listGroups", "putGroup", "deleteGroup", "getGroup",
    "joinGroup", "leaveGroup", "fetch", "commit", "getOffsets", "resetGroup", "nack", "deadLetters",
    "redrive", "traceMessage", "listDelayed", "cancelDelayed", "getRetention", "getCluster",
    "getDrain", "drain", "undrain", "getRoute", "getRoutes",
}  # fmt: skip


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with Node(tmp_path_factory.mktemp("openapi")) as running:
        running.start()
        running.wait_ready()
        for path in ("/v1/topics/orders", "/v1/groups/billing"):
            assert running.request_json("PUT", path, {})[0] == 200
        yield running


def _document() -> dict[str, Any]:
    levels = StoreConfig().delay_levels_ms
    rules = Rules(message_size_max=4 << 20, record_crc=True, delay_levels_ms=levels)
    return api_document.document(version="0", rules=rules, request_size_max=16 << 20)


def test_the_server_serves_the_document(node: Node) -> None:
    status, served = node.request_json("GET", "/v1/openapi.json")
    assert status == 200
    assert served["paths"] == _document()["paths"]


def _operations() -> list[tuple[str, str, str]]:
    return [
        (call["operationId"], path, method)
        for path, calls in _document()["paths"].items()
        for method, call in calls.items()
    ]


def test_the_document_has_all_calls() -> None:
    assert {name for name, _, _ in _operations()} == EXPECTED


def _aimed(case: Any, data: st.DataObject) -> Any:
    """Aim the request at something that exists, half of the time; a long wait is never asked
    for."""
    given = case.path_parameters
    if data.draw(st.booleans()) and case.method != "DELETE":
        for name, value in (("topic", "orders"), ("queue", 0), ("group", "billing")):
            if name in given:
                given[name] = value
    for name in ("topic", "group", "member", "unique_id"):
        if isinstance(given.get(name), str):
            # requests takes "%05" for an escape already made: the name would arrive as another.
            given[name] = given[name].replace("%", "_")
    body = case.body
    if isinstance(body, dict) and body.get("retry") is True:
        # A rule between fields, which the schema has only as text: a repeated message has an id.
        for number, message in enumerate(body.get("messages") or ()):
            if isinstance(message, dict) and not message.get("unique_id"):
                message["unique_id"] = f"{number:032X}"
    for fields in (case.query, case.body):
        if isinstance(fields, dict) and isinstance(fields.get("wait_ms"), int):
            fields["wait_ms"] = min(fields["wait_ms"], 5)
    return case


@pytest.mark.parametrize("mode", list(GenerationMode))
@pytest.mark.parametrize(("name", "path", "method"), _operations())
def test_schemathesis_finds_no_500_and_no_undocumented_answer(
    node: Node, name: str, path: str, method: str, mode: GenerationMode
) -> None:
    operation = schemathesis.openapi.from_dict(_document())[path][method.upper()]
    cases = operation.as_strategy(generation_mode=mode)
    # It treats every 5xx as a defect; a documented 503 is valid, a 500 is not.
    excluded = [not_a_server_error]
    if name in RULES_BETWEEN_PARAMETERS:
        excluded.append(positive_data_acceptance)

    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=cases, data=st.data())
    def check(case: Any, data: st.DataObject) -> None:
        response = _aimed(case, data).call(base_url=node.api_url)
        assert response.status_code != 500, response.text
        case.validate_response(response, excluded_checks=excluded)

    if mode is GenerationMode.NEGATIVE and name in NOTHING_TO_GET_WRONG:
        with pytest.raises(Unsatisfiable):
            check()
    else:
        check()
