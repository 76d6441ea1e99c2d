"""The document and the routes name the same calls, parameters and fields."""

from __future__ import annotations

from typing import Any, get_args

import pytest
from aiohttp.test_utils import TestClient, TestServer
from jsonschema_rs import Draft202012Validator

from services.broker.api import api_document, reference
from services.broker.api.gate import Gate
from services.broker.api.http_api import Api
from services.broker.api.http_requests import BodyBounds
from services.broker.api.messages import Rules
from services.broker.groups.lag import Reason
from services.broker.log.ack_levels import AckLevel
from services.broker.metrics import BrokerMetrics
from services.broker.request_classes import KINDS
from services.broker.retention.retention import Stay, Why
from services.broker.schema import group_views, messages, node
from services.broker.send.unique_ids import UniqueIds
from shared.metrics.registry import Registry
from shared.runtime.clock import SystemClock
from shared.runtime.health import Health
from tests.support.own_routes import own_route
from tidemark.formats.hosts import Host

RULES = Rules(message_size_max=1000, record_crc=True)


@pytest.fixture
def document() -> dict[str, Any]:
    return api_document.document(version="1", rules=RULES, request_size_max=1000)


def an_api() -> Api:
    clock = SystemClock()
    return Api(
        Gate(Health(clock)),
        RULES,
        clock,
        BrokerMetrics(Registry("broker")),
        UniqueIds(clock, Host(b"\x7f\x00\x00\x01", 1)),
        BodyBounds(1000, 1000, 1.0),
        own_route(),
        version="1",
    )


def test_every_route_is_described_and_everything_described_is_a_route(
    document: dict[str, Any],
) -> None:
    api = an_api()
    routes = {
        (route.method.lower(), route.resource.canonical)
        for route in api.app.router.routes()
        if route.resource is not None
    }
    described = {(method, path) for path, calls in document["paths"].items() for method in calls}
    assert routes == described
    assert {resource.name for resource in api.app.router.named_resources().values()} == set(KINDS)


async def test_the_document_is_made_once_when_it_is_first_read(
    document: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the start it would delay every node that restarts."""
    made: list[str] = []

    def noted(*, version: str, rules: Rules, request_size_max: int) -> dict[str, Any]:
        made.append(version)
        return document

    monkeypatch.setattr(api_document, "document", noted)
    api = an_api()
    assert not made
    async with TestClient(TestServer(api.app)) as client:
        for _ in range(2):
            answer = await client.get("/v1/openapi.json")
            assert await answer.json() == document
    assert made == ["1"]


def test_every_reference_leads_somewhere(document: dict[str, Any]) -> None:
    found: list[str] = []

    def walk(value: object) -> None:
        if isinstance(value, dict):
            if "$ref" in value:
                found.append(value["$ref"])
            for inner in value.values():
                walk(inner)
        elif isinstance(value, list):
            for inner in value:
                walk(inner)

    walk(document)
    assert {reference.rpartition("/")[2] for reference in found} <= set(
        document["components"]["schemas"]
    )


@pytest.mark.parametrize(
    ("schema", "fields"),
    [
        ("Nack", {"message_id": "0" * 32}),
        ("Commit", {"offsets": [{"topic": "orders", "queue": 0, "offset": 1}]}),
    ],
)
def test_a_member_and_its_generation_are_named_together(
    document: dict[str, Any], schema: str, fields: dict[str, Any]
) -> None:
    wanted = {"$ref": f"#/components/schemas/{schema}", "components": document["components"]}
    validator = Draft202012Validator(wanted)
    both: dict[str, Any] = {"member": "m1", "generation": 1}
    assert validator.is_valid({**fields, **both})
    assert validator.is_valid(fields)
    assert validator.is_valid({**fields, **dict.fromkeys(both)})
    for name, value in both.items():
        assert not validator.is_valid({**fields, name: value})
        assert not validator.is_valid({**fields, **dict.fromkeys(both), name: value})


@pytest.mark.parametrize(
    ("words", "values"),
    [
        (group_views.Reason, {str(reason) for reason in Reason}),
        (node.Why, {why.value for why in Why}),
        (node.Stay, {stay.name.lower() for stay in Stay}),
        (messages.AckLevel, {level.value for level in AckLevel}),
    ],
)
def test_the_words_of_the_contract_are_those_of_the_broker(words: Any, values: set[str]) -> None:
    assert set(get_args(words)) == values


def test_the_page_has_all_calls_as_they_are() -> None:
    page = reference.PAGE.read_text()
    assert reference.current(page) == page, "run `make api-page`"
