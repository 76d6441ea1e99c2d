"""The command line of the drills."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import pytest

import drills.__main__
from drills.namespaces import Loopback


# In a checkout the default was once the package of the drills itself, so stores and the report were
# written into it.
def test_the_report_goes_to_a_directory_that_is_no_package(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given: list[Path] = []

    def run(chosen: object, network: object, arguments: argparse.Namespace, seed: int) -> int:
        given.append(arguments.out)
        return 0

    monkeypatch.setattr(drills.__main__, "_run", run)
    monkeypatch.setattr(drills.__main__, "Namespaces", Loopback)
    monkeypatch.setattr(sys, "argv", ["drills", "kill-master"])
    assert drills.__main__.main() == 0
    assert given == [Path("drill-report")]
