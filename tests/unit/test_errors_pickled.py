"""Errors cross processes (``ProcessPoolExecutor``, pytest-xdist) and are copied unchanged."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path

import msgpack
import pytest

from tidemark import errors
from tidemark.client.answers import MSGPACK, error_of


def _kinds(
    kind: type[errors.TidemarkError] = errors.TidemarkError,
) -> Iterator[type[errors.TidemarkError]]:
    yield kind
    for below in kind.__subclasses__():
        if below.__module__ == errors.__name__:
            yield from _kinds(below)


def _answered(code: str) -> errors.TidemarkError:
    wire = {"code": code, "title": "T", "detail": "What.", "advice": "Do.", "retriable": True,
            "quota": 5}  # fmt: skip
    return error_of(418, {"Content-Type": MSGPACK}, msgpack.packb(wire))


EXAMPLES: list[errors.TidemarkError] = [
    errors.CorruptRecord(7, "bad", Path("/a")),
    errors.BrokenAnswer("why"),
    errors.AckTimeout("Stored.", "Look.", results=[{"queue": 1}], ack={"level": "disk"}),
    *(_answered(kind.code) for kind in dict.fromkeys(_kinds())),
    _answered("quota-exceeded"),
]
AGAIN: list[Callable[[errors.TidemarkError], errors.TidemarkError]] = [
    copy.copy,
    copy.deepcopy,
    *(
        (lambda error, protocol=protocol: pickle.loads(pickle.dumps(error, protocol)))
        for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1)
    ),
]


@pytest.mark.parametrize("again", AGAIN)
def test_an_error_that_was_pickled_or_copied_is_the_same(
    again: Callable[[errors.TidemarkError], errors.TidemarkError],
) -> None:
    assert len(EXAMPLES) > 60
    for error in EXAMPLES:
        error.add_note("a note")
        same = again(error)
        assert same is not error
        assert str(same) == str(error)
        assert (same.code, same.title, same.status, same.retriable) == (
            error.code, error.title, error.status, error.retriable,
        )  # fmt: skip
        assert (same.detail, same.advice, same.facts, same.__notes__) == (
            error.detail, error.advice, error.facts, error.__notes__,
        )  # fmt: skip
        if type(error).__module__ == errors.__name__:
            assert type(same) is type(error)
        else:
            assert isinstance(same, errors.TidemarkError)
