from __future__ import annotations

from fractions import Fraction

import pytest

from drills.pods.objects import BadManifest, Objects, quantity, revision_of, selects
from drills.pods.plans import content_of
from drills.pods.starting import with_secrets
from tests.unit.drills.pods import manifests


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("2", 2),
        ("500m", Fraction(1, 2)),
        ("2Gi", 2 << 30),
        ("1.5k", 1500),
        (3, 3),
        ("16Mi", 16 << 20),
    ],
)
def test_quantities_are_numbers_of_cores_or_bytes(text: object, value: object) -> None:
    assert quantity(text) == value


@pytest.mark.parametrize("text", ["", "Gi", "1Zi", "-1", "1 Gi"])
def test_what_is_no_quantity_is_refused(text: str) -> None:
    with pytest.raises(BadManifest):
        quantity(text)


@pytest.mark.parametrize(
    ("selector", "matches"),
    [
        ({}, True),
        (None, False),
        ({"matchLabels": {"role": "master"}}, True),
        ({"matchLabels": {"role": "slave"}}, False),
        ({"matchExpressions": [{"key": "role", "operator": "In", "values": ["master"]}]}, True),
        ({"matchExpressions": [{"key": "role", "operator": "NotIn", "values": ["master"]}]}, False),
        ({"matchExpressions": [{"key": "zone", "operator": "Exists"}]}, False),
        ({"matchExpressions": [{"key": "zone", "operator": "DoesNotExist"}]}, True),
    ],
)
def test_selectors_match_as_kubernetes_does(selector: dict[str, object], matches: bool) -> None:
    assert selects(selector, {"role": "master"}) is matches


def test_one_object_twice_is_an_error() -> None:
    with pytest.raises(BadManifest, match="Secret shop key is there twice"):
        Objects([manifests.secret(), manifests.secret()])


def test_a_missing_object_is_named() -> None:
    with pytest.raises(BadManifest, match="no ConfigMap conf in namespace shop"):
        manifests.objects().get("ConfigMap", "shop", "conf")


def test_a_template_that_says_the_same_has_the_same_revision() -> None:
    found = manifests.stateful_set()["spec"]["template"]
    again = manifests.stateful_set()["spec"]["template"]
    assert revision_of(found) == revision_of(again)
    again["metadata"]["annotations"]["colour"] = "red"
    assert revision_of(found) != revision_of(again)


def test_a_secret_that_others_are_to_make_is_made_for_a_run() -> None:
    there, made = with_secrets(manifests.objects())
    assert made == []
    assert [one["kind"] for one in there] == ["StatefulSet", "Secret"]
    found, made = with_secrets(Objects([manifests.stateful_set()]))
    assert made == ["key"]
    content = content_of(found.get("Secret", "shop", "key"))
    assert list(content) == ["secret"]
    assert len(content["secret"]) == 64
