"""The notebook of docs/notebooks runs from its first cell to its last and plots the answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.asked_tables import asked_tables, write
from tests.support.spark import spark

__all__ = ["spark"]
pytestmark = pytest.mark.xdist_group("spark")
NOTEBOOK = Path(__file__).resolve().parents[2] / "docs/notebooks/lag.ipynb"


def bars_of(figure: Any) -> dict[str, list[float]]:
    """Lengths of the bars of a figure by the name in its legend."""
    (axes,) = figure.axes
    return {
        str(drawn.get_label()): [float(bar.get_width()) for bar in drawn]
        for drawn in axes.containers
    }


@pytest.mark.usefixtures("spark")
def test_all_cells_run_in_order_and_plot_what_the_tables_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    plt = pytest.importorskip("matplotlib.pyplot")
    monkeypatch.setenv("TIDEMARK_TABLES", write(tmp_path, asked_tables()).uri)
    monkeypatch.chdir(NOTEBOOK.parent)
    names: dict[str, Any] = {}
    for cell in json.loads(NOTEBOOK.read_text())["cells"]:
        if cell["cell_type"] == "code":
            exec("".join(cell["source"]), names)
    figures = {plt.figure(at).axes[0].get_title(): plt.figure(at) for at in plt.get_fignums()}
    plots = {title: bars_of(figure) for title, figure in figures.items()}
    texts = {
        title: [each.get_text().strip() for each in figure.axes[0].texts]
        for title, figure in figures.items()
    }
    plt.close("all")
    assert plots["Late now"]["age_max_seconds"] == [3585, 2685, 0, 957]
    assert plots["Traffic by week"]["per_second_now"] == [200, 460, 50]
    assert texts["Traffic by week"] == ["not known"], "payments had no week before"
    assert texts["Time until late groups are done"] == ["never"] * 3
    # By name: archive, audit, billing, ledger, mailer, search-index, sensors.
    assert plots["Time by status"]["STOPPED"] == pytest.approx([0, 231 / 240, 0, 0, 0, 0, 0])
    assert plots["Time in processing"]["seconds_before"] == pytest.approx([0.2])
    assert plots["Alarms that ended"]["longest_minutes"][1:] == [20, 10]


def test_the_notebook_is_kept_without_outputs() -> None:
    cells = json.loads(NOTEBOOK.read_text())["cells"]
    assert all(not cell["outputs"] for cell in cells if cell["cell_type"] == "code")
