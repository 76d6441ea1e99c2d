from __future__ import annotations

import io
import json
import logging
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from shared.runtime import logs
from tidemark.errors import StoreLocked


@pytest.fixture
def lines() -> Iterator[io.StringIO]:
    root, hook = logging.getLogger(), sys.excepthook
    handlers, level = list(root.handlers), root.level
    stream = io.StringIO()
    logs.configure("reput", "info", stream)
    yield stream
    logging.captureWarnings(False)
    root.handlers[:] = handlers
    root.setLevel(level)
    sys.excepthook = hook


def test_a_line_is_one_json_object_with_event_and_facts(lines: io.StringIO) -> None:
    logging.getLogger("x").info(
        "dispatching\nnow", extra={"event": "ready", "offset": 7, "path": Path("/s")}
    )
    (text,) = lines.getvalue().splitlines()
    line = json.loads(text)
    assert line.pop("time").endswith("Z")
    assert line == {
        "level": "info",
        "service": "reput",
        "event": "ready",
        "message": "dispatching\nnow",
        "offset": 7,
        "path": "/s",
    }


def test_an_exception_carries_its_code_and_stack(lines: io.StringIO) -> None:
    try:
        raise StoreLocked("held by 7")
    except StoreLocked:
        logging.getLogger("x").exception("no")
    line = json.loads(lines.getvalue())
    assert line["code"] == "store-locked"
    assert "held by 7" in line["error"]
    assert "Traceback" in line["stack"]


def test_configuring_twice_does_not_print_twice(lines: io.StringIO) -> None:
    logs.configure("reput", "warning", lines)
    logging.getLogger("x").warning("once")
    logging.getLogger("x").info("below the level")
    assert len(lines.getvalue().splitlines()) == 1


def test_an_uncaught_exception_is_a_log_line_too(lines: io.StringIO) -> None:
    error = RuntimeError("bug")
    sys.excepthook(RuntimeError, error, None)
    assert json.loads(lines.getvalue())["event"] == "uncaught"


def test_a_line_of_a_library_names_it(lines: io.StringIO) -> None:
    logging.getLogger("some.library").warning("odd")
    line = json.loads(lines.getvalue())
    assert (line["event"], line["logger"]) == ("library", "some.library")
    for name in ("aiohttp.access", "urllib3.connectionpool"):
        logging.getLogger(name).warning("once for every try")
    assert len(lines.getvalue().splitlines()) == 1


def test_a_fact_named_like_a_field_of_the_line_is_kept_beside_it(lines: io.StringIO) -> None:
    logging.getLogger("x").info("odd", extra={"event": "ready", "level": "disk", "time": 7})
    line = json.loads(lines.getvalue())
    assert (line["level"], line["level_"], line["time_"]) == ("info", "disk", 7)
    assert line["event"] == "ready"
