"""What commands print for a person."""

from __future__ import annotations

import errno
import subprocess
import sys
from pathlib import Path

import aiohttp
import pytest
from rich.console import Console

from tidemark.cli import output
from tidemark.client.transport import reason_of

ROW = {"node": "n0", "api": "http://tidemark-g0-0.tidemark-g0.tidemark.svc:8080", "lag_bytes": 12}


def shown(width: int, columns: list[str], rows: int = 2) -> str:
    console = Console(width=width, highlight=False, markup=False)
    with console.capture() as captured:
        console.print(output.fitting([ROW] * rows, columns, console))
    return captured.get()


def test_a_table_that_fits_is_a_table() -> None:
    heading, first, _ = shown(80, list(ROW)).splitlines()
    assert heading.split() == ["node", "api", "lag", "bytes"]
    assert first.split() == ["n0", ROW["api"], "12"]


def test_a_table_that_does_not_fit_is_shown_line_by_line_and_nothing_is_folded() -> None:
    # Addresses and headings were folded at 80 columns: what was copied from them was half an id.
    columns = [*ROW, "confirm", "reason"]
    assert shown(70, columns).splitlines() == [
        *(block := [
            "node       n0",
            f"api        {ROW['api']}",
            "lag bytes  12",
            "confirm    -",
            "reason     -",
        ]),
        "",
        *block,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("retention_ms", 604_800_000, "retention  7d"),
        ("took_ms", 350, "took  350ms"),
        ("lag_ms", None, "lag  -"),
    ],
)
def test_milliseconds_are_shown_in_readable_units(
    name: str, value: int | None, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    output.print_facts({name: value})
    assert capsys.readouterr().out == f"{text}\n"


@pytest.mark.parametrize("name", ["store_timestamp_ms", "deliver_at_ms", "at_ms"])
def test_points_in_time_are_dates(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    output.print_facts({name: 1_790_000_000_000})
    assert " 2026-09-2" in capsys.readouterr().out


async def test_a_server_that_is_down_is_reported_with_the_operating_systems_text() -> None:
    # It was: Cannot connect to host 127.0.0.1:1 ssl:default [Connect call failed ('127.0.0.1', 1)]
    async with aiohttp.ClientSession() as session:
        with pytest.raises(aiohttp.ClientConnectorError) as caught:
            await session.get("http://127.0.0.1:1")
    assert caught.value.os_error.errno == errno.ECONNREFUSED
    assert reason_of(caught.value) == "connection refused"


def test_ctrl_c_while_the_command_line_is_being_imported_shows_no_traceback(tmp_path: Path) -> None:
    # The import of the first command is interrupted, as by a Ctrl-C at that moment.
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\n"
        "class Interrupt:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'tidemark.cli.cluster':\n"
        "            raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Interrupt())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", "from tidemark.cli.programs import tidemark; tidemark()", "dev"],
        env={"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")
