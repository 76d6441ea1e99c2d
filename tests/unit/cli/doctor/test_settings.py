"""Settings are read by the services themselves; contradictions between them are reported."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

import pytest
from click.testing import CliRunner

from tidemark.cli.doctor import command, ports, settings
from tidemark.cli.doctor.findings import Finding, Level
from tidemark.cli.doctor.settings import Asked, ask, differing, files_of
from tidemark.cli.main import cli

CLUSTER = """
[store]
visible_after = "confirmed"
[cluster]
node = "a"
nodes = ["a=127.0.0.1:8084", "b=127.0.0.1:8094"]
api = ["a=http://h", "b=http://i"]
admin = ["a=http://h", "b=http://i"]
"""


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A service may take long to say how it reads its settings: the machine may be busy."""
    monkeypatch.setattr(settings, "ASK_S", 300.0)


def group_settings(directory: Path) -> str:
    return CLUSTER + f'secret_file = "{directory}/secret"\nlease_dir = "{directory}"\n'


def test_files_are_found_by_directory_by_name_and_by_service(tmp_path: Path) -> None:
    for name in ("broker.toml", "reput.toml", "other.toml"):
        (tmp_path / name).touch()
    assert files_of((str(tmp_path),)) == {
        "broker": tmp_path / "broker.toml",
        "reput": tmp_path / "reput.toml",
    }
    assert files_of((str(tmp_path / "reput.toml"), f"ha={tmp_path}/other.toml")) == {
        "reput": tmp_path / "reput.toml",
        "ha": tmp_path / "other.toml",
    }
    with pytest.raises(ValueError, match="of which service"):
        files_of((str(tmp_path / "other.toml"),))
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=r"has no broker\.toml"):
        files_of((str(tmp_path / "empty"),))


def test_mistakes_are_reported_in_the_services_own_texts(tmp_path: Path) -> None:
    given = tmp_path / "broker.toml"
    given.write_text("flush_intervall_ms = 3\nport = 99999\n")
    asked = ask("broker", given, None)
    assert asked.settings is None
    (found,) = asked.findings
    assert (found.level, found.code) == (Level.ERROR, "bad-config")
    assert "flush_intervall_ms" in found.cause
    assert "port = 99999" in found.cause


def test_a_secret_that_others_may_read_is_an_error_and_is_not_shown(tmp_path: Path) -> None:
    given, secret = tmp_path / "ha.toml", tmp_path / "secret"
    given.write_text(group_settings(tmp_path))
    secret.write_text("not for everybody's eyes")
    secret.chmod(0o644)
    found = ask("ha", given, None).findings[-1]
    assert (found.level, found.code, found.value) == (
        Level.ERROR,
        "doctor-secret-readable",
        "0o644",
    )
    secret.chmod(0o600)
    asked = ask("ha", given, None)
    assert {finding.level for finding in asked.findings} == {Level.OK}
    assert "eyes" not in repr(asked)


def test_settings_that_differ_between_the_services_of_a_node_are_named() -> None:
    one = {"store_dir": "/a", "run_dir": None, "store": dict.fromkeys(SHAPE, 1)}
    other = {**one, "store": {**one["store"], "index_slots": 2}}  # type: ignore[dict-item]
    (found,) = differing({"broker": one, "reput": other})
    assert (found.level, found.subject) == (Level.ERROR, "store.index_slots")
    assert "broker has 1, reput has 2" in found.cause
    (found,) = differing({"broker": one, "reput": one})
    assert found.level is Level.OK
    assert differing({"broker": one}) == []


SHAPE = (
    *("commit_log_file_size", "consume_queue_file_size", "index_slots", "index_entries"),
    "visible_after",
)


def test_a_port_of_another_program_is_an_error_and_a_free_one_is_ok() -> None:
    with socket.socket() as stranger:
        stranger.bind(("127.0.0.1", 0))
        stranger.listen()
        number = stranger.getsockname()[1]
        found = ports.port("broker", ("127.0.0.1", number), "/live")
        assert (found.level, found.code, found.value) == (Level.ERROR, "cannot-listen", number)
    assert ports.port("broker", ("127.0.0.1", number), "/live").level is Level.OK


def test_ports_are_those_of_the_settings_and_the_kernels_choice_is_never_taken() -> None:
    settings = {
        "broker": {"host": "h", "port": 1, "admin_host": "h", "admin_port": 0},
        "reput": {"admin_host": "h", "admin_port": 2},
    }
    assert [check.subject for check in ports.checks(settings)] == ["port 1", "admin_port 2"]


def answer_mistakes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command reads no settings; the first test of mistakes runs the service itself."""
    mistake = Finding(
        "config.reput",
        Level.ERROR,
        "reput.toml",
        "admin_prot",
        code="bad-config",
        remedy="Correct the settings",
    )
    monkeypatch.setattr(command, "ask", lambda *_: Asked(None, [mistake]))


def test_the_command_fails_by_its_errors_alone_and_speaks_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    roomy = {
        "f_blocks": 1 << 30,
        "f_frsize": 4096,
        "f_bfree": 1 << 29,
        "f_bavail": 1 << 29,
        "f_files": 0,
        "f_favail": 0,
    }
    monkeypatch.setattr(os, "statvfs", lambda _: type("Facts", (), roomy)())
    given = tmp_path / "reput.toml"
    given.write_text("admin_port = 0\n")
    arguments = ["doctor", "--config", str(given), "--store", str(tmp_path), "-o", "json"]
    well = CliRunner().invoke(cli, arguments)
    said = json.loads(well.stdout)
    assert (well.exit_code, said["summary"]["error"]) == (0, 0)
    assert {"disk.kind", "clock.boot", "limits.files", "python", "config.reput"} <= {
        finding["check"] for finding in said["findings"]
    }
    assert not [f for f in said["findings"] if f["check"].startswith("nodes")], (
        "nodes were not to be checked"
    )
    answer_mistakes(monkeypatch)
    bad = CliRunner().invoke(cli, arguments)
    assert bad.exit_code == 1
    assert json.loads(bad.stdout)["summary"]["error"] == 1


def test_a_table_shows_problems_with_code_and_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = tmp_path / "reput.toml"
    given.touch()
    answer_mistakes(monkeypatch)
    shown = CliRunner().invoke(cli, ["doctor", "--config", str(given)])
    assert shown.exit_code == 1
    assert "ERROR config.reput" in shown.output
    assert "[bad-config] Correct the settings" in shown.output
    assert "clock.boot" not in shown.output
    assert "clock.boot" in CliRunner().invoke(
        cli, ["doctor", "--config", str(given), "--all"]
    ).output  # fmt: skip


def test_invalid_arguments_end_with_2(tmp_path: Path) -> None:
    strange = tmp_path / "strange.toml"
    strange.touch()
    assert CliRunner().invoke(cli, ["doctor", "--config", str(strange)]).exit_code == 2
