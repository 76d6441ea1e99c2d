"""The public names of the package before it has been used."""

from __future__ import annotations

import subprocess
import sys
import typing

import tidemark
from tidemark.client.dead_letters import DeadLetters
from tidemark.client.groups import Groups
from tidemark.client.subscription import Subscription
from tidemark.client.sync_subscription import SyncSubscription


def test_dir_shows_every_public_name_before_the_first_use() -> None:
    code = "import tidemark; print(*dir(tidemark))"
    shown = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True
    ).stdout.split()
    assert {*tidemark.__all__, "__version__", "errors"} <= set(shown)
    for name in tidemark.__all__:
        assert getattr(tidemark, name) is not None


def test_limits_are_public() -> None:
    assert tidemark.connect(limits=tidemark.Limits(count_max=7)) is not None
    assert "Limits" in tidemark.__all__


def test_words_that_a_call_takes_are_in_its_types() -> None:
    def words(hint: object) -> set[object]:
        found: set[object] = set()
        for each in typing.get_args(hint):
            found |= {each} if isinstance(each, str) else words(each)
        return found

    levels = {"memory", "disk", "replicated"}
    for kind in (tidemark.Client, tidemark.SyncClient):
        for call in (kind.send, kind.send_many):
            hints = typing.get_type_hints(call)
            assert words(hints["ack"]) == levels
        assert words(typing.get_type_hints(kind.subscribe)["start"]) == {"first", "last"}
    for subscription in (Subscription, SyncSubscription):
        assert words(typing.get_type_hints(subscription.commit)["ack"]) == {"accepted", "disk"}
    assert words(typing.get_type_hints(Groups.reset)["to"]) == {"first", "last"}
    assert typing.get_args(typing.get_type_hints(DeadLetters.redrive)["to"]) == ("topic", "group")
