"""pytest fixtures: ``pytest_plugins = ["tidemark.testing.fixtures"]`` in a conftest.py."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tidemark.testing.node import LocalNode
from tidemark.testing.store import LocalStore


@pytest.fixture
def tidemark_settings() -> Mapping[str, object]:
    """Settings of the broker for ``tidemark_store``. Override this fixture to change them:
    ``{"store.delay_levels": "1s 2s", "auto_create_topics": False}``."""
    return {}


@pytest.fixture
def tidemark_store(tmp_path: Path, tidemark_settings: Mapping[str, object]) -> Iterator[LocalStore]:
    """An empty store in this process with a clock for the test: ``clock.advance(3600)``."""
    with LocalStore(tmp_path / "tidemark", settings=tidemark_settings) as store:
        yield store


@pytest.fixture
def tidemark_node(tmp_path: Path) -> Iterator[LocalNode]:
    """A node of two real processes with an empty store; stopped when the test ends."""
    with LocalNode(tmp_path / "tidemark") as node:
        yield node


@pytest.fixture(scope="session")
def tidemark_session_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalNode]:
    """One node for all tests of a session, which is faster; use other topics in every test."""
    with LocalNode(tmp_path_factory.mktemp("tidemark")) as node:
        yield node
