"""Single fields: what is taken, and how a wrong one is shown."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.broker import fields
from tidemark.errors import BadName, BadRequest


@pytest.mark.parametrize("name", ["a", "orders", "%RETRY%g", "a|b", "A-_9", "x" * 127])
def test_names_within_the_rule(name: str) -> None:
    assert fields.check_name(name) == name


@pytest.mark.parametrize("name", ["", "a b", "a.b", "größe", "x" * 128, "a/b", "a\n", "..", "\x00"])
def test_names_outside_the_rule(name: str) -> None:
    with pytest.raises(BadName, match="a-z A-Z 0-9"):
        fields.check_name(name)


def test_retry_topics_may_be_longer() -> None:
    assert fields.check_name("%RETRY%" + "x" * 248)
    with pytest.raises(BadName):
        fields.check_name("%RETRY%" + "x" * 249)


@given(st.integers())
def test_a_parameter_is_a_decimal_i64_or_refused(value: int) -> None:
    if -(2**63) <= value < 2**63:
        assert fields.parameter_int(str(value), "offset") == value
    else:
        with pytest.raises(BadRequest, match="offset"):
            fields.parameter_int(str(value), "offset")


@pytest.mark.parametrize("text", ["", " 1", "1 ", "+1", "1_000", "0x1", "1e3", "١", "--1", "1.0"])
def test_numbers_that_only_python_accepts_are_refused(text: str) -> None:
    with pytest.raises(BadRequest):
        fields.parameter_int(text, "max")


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_a_shown_value_is_short_and_can_be_printed(value: object) -> None:
    text = fields.shown(value)
    assert len(text) <= fields.SHOWN_MAX
    text.encode()


def test_a_huge_number_and_a_huge_string_are_shown_without_being_written_out() -> None:
    assert fields.shown(10**10_000) == "a huge number"
    assert len(fields.shown("x" * 10_000_000)) <= fields.SHOWN_MAX


def test_an_unknown_field_is_named_with_those_that_exist() -> None:
    with pytest.raises(BadRequest, match=r"'messages\[0\]\.tag' is not a field") as caught:
        fields.known_fields({"tag": 1}, {"tags", "keys"}, "messages[0].")
    assert caught.value.advice == "It has: keys, tags."


@pytest.mark.parametrize("value", [True, 1.5, float("nan"), float("inf"), "1", None, [], 11, -1])
def test_only_a_whole_number_within_the_bounds_is_one(value: object) -> None:
    with pytest.raises(BadRequest, match="queue"):
        fields.whole_number(value, "queue", 0, 10)


def test_a_whole_float_is_a_whole_number_as_json_schema_has_it() -> None:
    assert fields.whole_number(3.0, "queue", 0, 10) == 3
