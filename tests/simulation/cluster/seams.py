"""Replaces the client's transport, clock and randomness, and the registrar's HTTP, for a ``with``.

What is patched is named, so a rename in the product breaks the simulation instead of weakening it.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Final
from unittest.mock import patch

from services.broker import registrar
from services.broker.api import own_route
from services.broker.groups import coordinator
from tests.simulation.cluster import transport
from tests.simulation.cluster.loop import Loop
from tests.simulation.cluster.network import Network
from tidemark.client import (
    client,
    connection,
    group_calls,
    master_discovery,
    route_calls,
    unique_ids,
)

TRANSPORTS: Final = (connection, route_calls)
SECRETS: Final = (group_calls, unique_ids)
TICK_S: Final = 0.5
"""Idle polls cost most of the time of a history; longer intervals find the same."""
WATCH_S: Final = 0.5
REGISTRAR_POLL_S: Final = 5.0
COORDINATOR_POLL_S: Final = 0.25


@contextmanager
def simulated(loop: Loop, network: Network, seed: int) -> Iterator[None]:
    """Run clients and brokers in the world of that loop and that network."""
    drawn = random.Random(seed)
    secrets = SimpleNamespace(token_hex=lambda size: f"{drawn.getrandbits(8 * size):0{2 * size}x}")
    level, state = logging.root.manager.disable, random.getstate()
    with ExitStack() as stack:
        for module in TRANSPORTS:
            stack.enter_context(patch.object(module, "Transport", transport.Transport))
        for module in SECRETS:
            stack.enter_context(patch.object(module, "secrets", secrets))
        replaced = (
            (transport.Transport, "network", network),
            (client, "boot_ms", lambda: loop.time() * 1000),
            (master_discovery, "TICK_S", TICK_S),
            (registrar, "aiohttp", transport.AIOHTTP),
            (registrar, "POLL_S", REGISTRAR_POLL_S),
            (own_route, "WATCH_S", WATCH_S),
            (coordinator, "POLL_S", COORDINATOR_POLL_S),
        )
        for of, name, value in replaced:
            stack.enter_context(patch.object(of, name, value, create=name == "network"))
        logging.disable(logging.CRITICAL)
        stack.callback(logging.disable, level)
        random.seed(seed)
        stack.callback(random.setstate, state)
        yield
