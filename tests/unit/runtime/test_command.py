from __future__ import annotations

import importlib
import json
import logging
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from shared.runtime.command import run_service
from shared.runtime.config import setting
from tidemark.errors import CannotListen

SERVICES = ("broker", "reput", "ha")


@dataclass(frozen=True, slots=True)
class SomeConfig:
    size: int = setting(1, unit="bytes", minimum=1, maximum=9)
    count: int = setting(1, unit="things", minimum=1, maximum=9)
    log_level: str = "warning"


@pytest.fixture(autouse=True)
def _logging_as_before() -> Iterator[None]:
    root, hook = logging.getLogger(), sys.excepthook
    level, handlers = root.level, list(root.handlers)
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    sys.excepthook = hook
    logging.captureWarnings(False)


async def served(settings: SomeConfig) -> None:
    """A service that ends at once."""
    assert logging.getLogger().level == logging.WARNING  # before anything of it runs


async def port_taken(settings: SomeConfig) -> None:
    raise CannotListen("port 1 is taken.", "Take another.", host="h", port=1)


def status_of(capture: pytest.ExceptionInfo[SystemExit]) -> object:
    return capture.value.code


def test_every_mistake_in_the_settings_is_printed_and_the_status_is_2(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as ended:
        run_service("some", SomeConfig, None, "SOME_", {"size": 0, "count": 99}, served)
    assert status_of(ended) == 2
    said = capsys.readouterr().err
    assert said.startswith("tidemark: ")
    assert "size" in said
    assert "count" in said


def test_a_service_that_stops_in_order_ends_with_0() -> None:
    with pytest.raises(SystemExit) as ended:
        run_service("some", SomeConfig, None, "SOME_", {"size": 2}, served)
    assert status_of(ended) == 0


def test_a_service_that_fails_ends_with_1_and_logs_why(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        run_service("some", SomeConfig, None, "SOME_", {}, port_taken)
    assert status_of(ended) == 1
    said = capsys.readouterr().err
    assert '"service": "some", "event": "ended"' in said
    assert "cannot-listen" in said


def test_work_is_done_instead_of_the_service(tmp_path: Path) -> None:
    done: list[int] = []
    given = tmp_path / "some.toml"
    given.write_text("size = 3\n")
    with pytest.raises(SystemExit) as ended:
        run_service(
            "some", SomeConfig, given, "SOME_", {}, served, work=lambda s: done.append(s.size)
        )
    assert (status_of(ended), done) == (0, [3])


@pytest.mark.parametrize("service", SERVICES)
def test_a_command_with_a_wrong_setting_names_it_and_ends_with_2(
    service: str, tmp_path: Path
) -> None:
    main = importlib.import_module(f"services.{service}.__main__").main
    assert isinstance(main, click.Command)
    given = tmp_path / "settings.toml"
    given.write_text("admin_prot = 1\nsync_intervall_ms = 3\n")
    result = CliRunner().invoke(main, ["--store", str(tmp_path), "--config", str(given)])
    assert result.exit_code == 2
    assert "admin_prot" in result.output
    assert "sync_intervall_ms" in result.output


@pytest.mark.parametrize("service", ["broker", "reput"])
def test_settings_that_are_only_checked_are_printed_and_nothing_is_made(
    service: str, tmp_path: Path
) -> None:
    main = importlib.import_module(f"services.{service}.__main__").main
    store = tmp_path / "store"
    result = CliRunner().invoke(main, ["--store", str(store), "--check-config"])
    assert result.exit_code == 0
    said = json.loads(result.stdout)
    assert said["service"] == service
    assert said["settings"]["store_dir"] == str(store)
    assert said["settings"]["store"]["commit_log_file_size"] == 1 << 30
    assert not store.exists()


def test_a_secret_is_read_when_settings_are_checked_and_never_printed(tmp_path: Path) -> None:
    main = importlib.import_module("services.ha.__main__").main
    secret = tmp_path / "secret"
    given = tmp_path / "ha.toml"
    given.write_text(
        f"""
[store]
visible_after = "confirmed"
[cluster]
node = "a"
nodes = ["a=h:8084", "b=i:8084"]
api = ["a=http://h", "b=http://i"]
admin = ["a=http://h", "b=http://i"]
secret_file = "{secret}"
lease_dir = "{tmp_path}"
"""
    )
    absent = CliRunner().invoke(main, ["--config", str(given), "--check-config"])
    assert absent.exit_code == 2
    assert "cluster.secret_file" in absent.output
    secret.write_text("a very secret word")
    secret.chmod(0o600)
    read = CliRunner().invoke(main, ["--config", str(given), "--check-config"])
    assert read.exit_code == 0
    assert str(secret) in read.output
    assert "a very secret word" not in read.output
