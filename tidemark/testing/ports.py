"""Free loopback ports for servers under test."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import threading
from collections.abc import Mapping
from typing import Final

from tidemark.testing.child import NodeFailed

PORTS: Final = range(10_000, 32_000)
_choosing: Final = threading.Lock()
_next_port = 0
"""The port after the last ones returned; 0 before the first call."""


def free_port() -> int:
    """Return a free loopback port."""
    return free_ports(1)[0]


def free_ports(count: int) -> list[int]:
    """Return adjacent free loopback ports.

    They are below the range that the kernel uses for outgoing connections, because such a
    connection could take a port at any moment. Each worker of pytest-xdist has its own share, and a
    process cycles through its share before it returns a port again. So no other caller gets a port
    between this check and the start of the server that will listen there.
    """
    global _next_port
    share = port_share(os.environ)
    with _choosing:
        for _ in range(len(share)):
            first = _next_port if _next_port in share else random.choice(share)
            if first + count > share.stop:
                first = share.start
            ports = range(first, first + count)
            _next_port = ports.stop
            with contextlib.ExitStack() as held, contextlib.suppress(OSError):
                for port in ports:
                    probe = held.enter_context(socket.socket())
                    probe.bind(("127.0.0.1", port))
                return list(ports)
    raise NodeFailed(f"There are no {count} free ports in a row from {share.start} to {share.stop}")


def port_share(environment: Mapping[str, str]) -> range:
    """The ports for this process: all, or its share as a worker of pytest-xdist."""
    worker = environment.get("PYTEST_XDIST_WORKER", "")
    if not worker.startswith("gw"):
        return PORTS
    workers = max(int(environment.get("PYTEST_XDIST_WORKER_COUNT", "1")), 1)
    size = len(PORTS) // workers
    first = PORTS.start + int(worker[2:]) % workers * size
    return range(first, first + size)
