"""pytest fixtures: ``pytest_plugins = ["tidemark.testing.fixtures"]`` in a conftest.py."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tidemark.testing.node import LocalNode


@pytest.fixture
def tidemark_node(tmp_path: Path) -> Iterator[LocalNode]:
    """A node of two real processes with an empty store; stopped when the test ends."""
    with LocalNode(tmp_path / "tidemark") as node:
        yield node


@pytest.fixture(scope="session")
def tidemark_session_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalNode]:
    """One node for all tests of a session: faster; give every test topics of its own."""
    with LocalNode(tmp_path_factory.mktemp("tidemark")) as node:
        yield node
