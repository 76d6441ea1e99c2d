"""The output of ``make dashboards``: one file per board, named by its uid. Pure but ``write``."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from deploy.grafana.boards import BOARDS
from deploy.grafana.frame import encoded, framed

DIRECTORY: Final = Path(__file__).with_name("dashboards")


def texts() -> dict[str, str]:
    return {f"{board.uid}.json": encoded(framed(board, BOARDS)) for board in BOARDS}


def write(directory: Path = DIRECTORY) -> list[Path]:
    """Write every board and remove files of removed boards; return the written paths."""
    directory.mkdir(parents=True, exist_ok=True)
    wanted = texts()
    for old in directory.glob("*.json"):
        if old.name not in wanted:
            old.unlink()
    written = []
    for name, text in wanted.items():
        path = directory / name
        path.write_text(text)
        written.append(path)
    return written
