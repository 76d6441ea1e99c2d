"""RocketMQ's JSON: bare keys, defaults, what is refused, and that what we write is read back."""

from __future__ import annotations

import json
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemark.formats import metadata_json
from tidemark.formats.json_dialect import Json
from tidemark.formats.metadata_json import (
    ConsumerOffsetsTable,
    Covered,
    DataVersion,
    DelayOffsetsTable,
    GroupEntry,
    GroupsTable,
    MetadataUnreadable,
    TopicEntry,
    TopicsTable,
)

I32 = st.integers(-(2**31), 2**31 - 1)
I64 = st.integers(-(2**63), 2**63 - 1)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
NAMES = st.text(string.ascii_letters + string.digits + "%|_-", min_size=1, max_size=12)
VERSIONS = st.builds(DataVersion, I64, I64, I64)
COVERED = st.none() | st.builds(Covered, st.integers(0, 2**31 - 1), st.integers(0, 2**63 - 1))
QUEUES = st.dictionaries(st.integers(0, 99), I64, max_size=4)

TOPICS = st.builds(
    TopicEntry,
    name=TEXT,
    read_queues=st.integers(0, 2**31 - 1),
    write_queues=st.integers(0, 2**31 - 1),
    perm=I32,
    filter_type=TEXT,
    sys_flag=I32,
    order=st.booleans(),
    attributes=st.dictionaries(TEXT, TEXT, max_size=3),
)
GROUPS = st.builds(
    GroupEntry,
    name=TEXT,
    consume_enable=st.booleans(),
    consume_message_orderly=st.booleans(),
    retry_queues=I32,
    retry_max=I32,
    broker_id=I64,
    which_broker_when_slow=I64,
    consume_timeout_min=I32,
    sys_flag=I32,
    attributes=st.dictionaries(TEXT, TEXT, max_size=3),
    retry_policy=st.just({"type": "EXPONENTIAL", "exponentialRetryPolicy": {"next": [1, 2]}}),
)


# -- the dialect -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("{0:12,1:7}", {"0": 12, "1": 7}),
        ('{\n\t"a":{0:12 , -1 :7\n\t}\n}', {"a": {"0": 12, "-1": 7}}),
        ('{"0":12}', {"0": 12}),
        ('{"a,1:":"{2:3}","b\\",4:":[1,2]}', {"a,1:": "{2:3}", 'b",4:': [1, 2]}),
        ("[1,2,{3:[4,5]}]", [1, 2, {"3": [4, 5]}]),
        ('"\\\\"', "\\"),
        ('{"a":1,"a":2}', {"a": 2}),
    ],
)
def test_bare_integer_keys_are_read_and_numbers_in_strings_are_left(text: str, value: Json) -> None:
    assert metadata_json.loads(text) == value


@pytest.mark.parametrize(
    "text",
    ["", "{", '{"a"}', '"open', '"open\\', "{1.5:2}", "NaN", "[Infinity]", "1e999", "9" * 5000],
)
def test_invalid_json_is_refused(text: str) -> None:
    with pytest.raises(MetadataUnreadable, match="not JSON"):
        metadata_json.loads(text)


@pytest.mark.parametrize("depth", [65, 500, 100_000])
def test_deeply_nested_json_is_refused(depth: int) -> None:
    with pytest.raises(MetadataUnreadable, match="nested too deeply"):
        metadata_json.loads("[" * depth + "]" * depth)
    with pytest.raises(MetadataUnreadable):
        metadata_json.loads('{"a":' * depth + "{}" + "}" * depth)


@pytest.mark.parametrize("text", ['"\\"' * 200_000, "{1" * 200_000, "," * 400_000, "{ " * 300_000])
@pytest.mark.timeout(60)  # a search that starts anew at each byte would take hours
def test_a_damaged_file_of_megabytes_is_refused(text: str) -> None:
    with pytest.raises(MetadataUnreadable):
        metadata_json.loads(text)


@given(
    st.recursive(
        st.none() | st.booleans() | I64 | TEXT,
        lambda inner: (
            st.dictionaries(TEXT, inner, max_size=3)
            | st.dictionaries(I64, I64, min_size=1, max_size=3)
        ),
        max_leaves=8,
    )
)
def test_a_written_value_is_read_back(value: object) -> None:
    as_json = json.loads(json.dumps(value))
    assert metadata_json.loads(metadata_json.dumps(value)) == as_json  # type: ignore[arg-type]


def test_the_form_is_the_reference_s() -> None:
    text = metadata_json.dumps({"b": {3: 1, 1: 2}, "a": {}, "c": {"d": True, "e": ["x", "ü"]}})
    assert text == (
        '{\n\t"a":{},\n\t"b":{1:2,3:1\n\t},\n\t"c":{\n\t\t"d":true,\n\t\t"e":["x","ü"]\n\t}\n}'
    )


# -- the tables ------------------------------------------------------------------------------------


@given(VERSIONS, st.lists(TOPICS, max_size=3), COVERED)
def test_topics_are_read_back(
    version: DataVersion, topics: list[TopicEntry], covered: Covered | None
) -> None:
    table = TopicsTable(version, {topic.name: topic for topic in topics}, covered)
    assert metadata_json.parse_topics(metadata_json.topics_text(table)) == table


@given(VERSIONS, st.lists(GROUPS, max_size=3), COVERED)
def test_groups_are_read_back(
    version: DataVersion, groups: list[GroupEntry], covered: Covered | None
) -> None:
    table = GroupsTable(version, {group.name: group for group in groups}, {"g": {"t": 2}}, covered)
    assert metadata_json.parse_groups(metadata_json.groups_text(table)) == table


@given(VERSIONS, st.dictionaries(st.tuples(NAMES, NAMES), QUEUES, max_size=3), COVERED)
def test_consumer_offsets_are_read_back(
    version: DataVersion, offsets: dict[tuple[str, str], dict[int, int]], covered: Covered | None
) -> None:
    table = ConsumerOffsetsTable(version, offsets, covered)
    text = metadata_json.consumer_offsets_text(table)
    assert metadata_json.parse_consumer_offsets(text) == table


@given(VERSIONS, QUEUES, COVERED)
def test_delay_offsets_are_read_back(
    version: DataVersion, offsets: dict[int, int], covered: Covered | None
) -> None:
    table = DelayOffsetsTable(version, offsets, covered)
    assert metadata_json.parse_delay_offsets(metadata_json.delay_offsets_text(table)) == table


def test_missing_fields_take_the_defaults_and_unknown_ones_are_ignored() -> None:
    topics = metadata_json.parse_topics('{"topicConfigTable":{"T":{"new":1}},"x":[]}')
    assert topics == TopicsTable(DataVersion(0, 0, 0), {"T": TopicEntry("T")})
    assert topics.topics["T"].read_queues == topics.topics["T"].write_queues == 16
    assert topics.topics["T"].perm == 6
    groups = metadata_json.parse_groups('{"subscriptionGroupTable":{"G":{"attributes":null}}}')
    assert groups.groups == {"G": GroupEntry("G")}
    assert metadata_json.parse_groups("{}").groups == {}
    assert metadata_json.parse_delay_offsets("{}").offsets == {}


def test_the_key_names_topic_and_group() -> None:
    text = '{"offsetTable":{"%RETRY%G@G":{0:3},"T@G":{"0":12,1:7},"no group":{0:1}}}'
    offsets = metadata_json.parse_consumer_offsets(text).offsets
    assert offsets == {("%RETRY%G", "G"): {0: 3}, ("T", "G"): {0: 12, 1: 7}}


def test_the_topics_of_a_group_are_listed_for_rocketmq() -> None:
    table = ConsumerOffsetsTable(DataVersion(), {("B", "G"): {0: 1}, ("A", "G"): {0: 1}})
    text = metadata_json.consumer_offsets_text(table)
    assert '"groupTopicMap":{\n\t\t"G":["A","B"]\n\t}' in text


def test_a_version_counts_changes() -> None:
    assert DataVersion(2, 5, 1).next(1_700_000_000_000) == DataVersion(3, 1_700_000_000_000, 1)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[]", "the file is not an object"),
        ('{"topicConfigTable":[]}', "topicConfigTable of the file is not an object"),
        ('{"topicConfigTable":{"T":7}}', "topic 'T' is not an object"),
        ('{"topicConfigTable":{"T":{"perm":true}}}', "perm of topic 'T' is not a whole number"),
        ('{"topicConfigTable":{"T":{"perm":6.0}}}', "perm of topic 'T' is not a whole number"),
        (
            '{"topicConfigTable":{"T":{"readQueueNums":-1}}}',
            "is not a whole number in 0…2147483647",
        ),
        ('{"topicConfigTable":{"T":{"order":1}}}', "order of topic 'T' is not true or false"),
        ('{"topicConfigTable":{"T":{"topicFilterType":1}}}', "is not a string"),
        ('{"topicConfigTable":{"T":{"attributes":{"a":1}}}}', "is not a string"),
        ('{"topicConfigTable":{"\\ud800":{}}}', "is not text: '\\ud800'"),
        ('{"dataVersion":{"counter":"1"}}', "counter of dataVersion of the file"),
        ('{"tidemark":{"physical_offset":-1}}', "physical_offset of tidemark of the file"),
    ],
)
def test_a_wrong_topics_file_is_refused_by_place(text: str, reason: str) -> None:
    with pytest.raises(MetadataUnreadable) as caught:
        metadata_json.parse_topics(text)
    assert reason in str(caught.value)


@pytest.mark.parametrize("text", ['{"offsetTable":{"x":1}}', '{"offsetTable":{1:"2"}}'])
def test_wrong_delay_offsets_are_refused(text: str) -> None:
    with pytest.raises(MetadataUnreadable, match="delay offsets"):
        metadata_json.parse_delay_offsets(text)


PARSERS = [
    metadata_json.parse_topics,
    metadata_json.parse_groups,
    metadata_json.parse_consumer_offsets,
    metadata_json.parse_delay_offsets,
]
TABLE_NAMES = "topicConfigTable", "subscriptionGroupTable", "forbiddenTable", "offsetTable"
FIELD_NAMES = "attributes", "perm", "order", "counter", "epoch", "readQueueNums", "type"
OTHER_NAMES = "dataVersion", "tidemark", "groupRetryPolicy", "T", "T@G", "0"
KEYS = st.sampled_from([*TABLE_NAMES, *FIELD_NAMES, *OTHER_NAMES])
TREES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(KEYS, TREES, max_size=4) | TREES)
def test_any_json_is_a_table_or_unreadable(tree: object) -> None:
    text = json.dumps(tree)
    for parse in PARSERS:
        try:
            parse(text)
        except MetadataUnreadable:
            continue


@given(st.text() | st.text('{}[]:,"\\0123456789 -e.', max_size=40))
def test_any_text_is_a_table_or_unreadable(text: str) -> None:
    for parse in PARSERS:
        try:
            parse(text)
        except MetadataUnreadable:
            continue


@given(st.dictionaries(KEYS, TREES, max_size=4))
def test_a_value_that_was_read_can_be_written_again(tree: object) -> None:
    try:
        groups = metadata_json.parse_groups(json.dumps(tree))
    except MetadataUnreadable:
        return
    metadata_json.groups_text(groups).encode("utf-8")
