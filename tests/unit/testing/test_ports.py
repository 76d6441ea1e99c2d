"""Ports for tests: free, and not given to another test for a while."""

from __future__ import annotations

import itertools
import socket

import pytest

from tidemark.testing import ports
from tidemark.testing.ports import PORTS, free_port, free_ports, port_share


def test_each_worker_has_a_share_of_its_own() -> None:
    """Both checked a port, both found it free, and one of two nodes could not listen."""
    shares = [
        port_share({"PYTEST_XDIST_WORKER": f"gw{at}", "PYTEST_XDIST_WORKER_COUNT": "3"})
        for at in range(3)
    ]
    for one, other in itertools.pairwise(shares):
        assert one.stop == other.start
    assert shares[0].start == PORTS.start
    assert shares[-1].stop <= PORTS.stop
    assert port_share({}) == port_share({"PYTEST_XDIST_WORKER": "master"}) == PORTS
    # A worker that replaces one that died has a number of its own.
    late = port_share({"PYTEST_XDIST_WORKER": "gw7", "PYTEST_XDIST_WORKER_COUNT": "3"})
    assert late == shares[1]


def test_a_port_is_not_named_again_soon() -> None:
    named = [*free_ports(3), *(free_port() for _ in range(50)), *free_ports(15)]
    assert len(set(named)) == len(named)
    assert named[:3] == list(range(named[0], named[0] + 3))


def test_a_port_in_use_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", free_port()))
        port = taken.getsockname()[1]
        monkeypatch.setattr(ports, "_next_port", port - 1)
        assert port not in free_ports(3)


def test_at_the_end_of_a_share_it_goes_on_at_its_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)
    monkeypatch.setattr(ports, "_next_port", PORTS.stop - 1)
    assert max(free_ports(2)) < PORTS.start + 1000
