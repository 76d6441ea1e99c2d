"""The public package of Tidemark: everything that a program imports.

    import tidemark

    async with tidemark.connect("http://localhost:8080") as mq:
        await mq.send("orders", b"hello", tags="new", keys=["order-1"])

    async with tidemark.connect() as mq, mq.subscribe("orders", group="billing") as messages:
        async for message in messages:  # asking for the next one commits this one
            print(message.body)

The names below are loaded on first use, because every service imports ``tidemark.errors`` and
``tidemark.formats`` and none of them should load an HTTP client.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidemark.errors import TidemarkError

if TYPE_CHECKING:
    from tidemark.client.batching import Limits
    from tidemark.client.client import Client, connect
    from tidemark.client.messages import (
        Message,
        NewMessage,
        PullResult,
        QueueRange,
        SendResult,
        Topic,
    )
    from tidemark.client.subscription import Subscription
    from tidemark.client.sync import SyncClient, connect_sync
    from tidemark.client.sync_subscription import SyncSubscription

__all__ = [
    "Client",
    "Limits",
    "Message",
    "NewMessage",
    "PullResult",
    "QueueRange",
    "SendResult",
    "Subscription",
    "SyncClient",
    "SyncSubscription",
    "TidemarkError",
    "Topic",
    "connect",
    "connect_sync",
]

__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    """Import a client name on first use."""
    if name not in __all__:
        raise AttributeError(f"module 'tidemark' has no attribute {name!r}")
    from tidemark.client import batching, client, messages, subscription, sync, sync_subscription

    for module in (batching, client, messages, subscription, sync, sync_subscription):
        if hasattr(module, name):
            value: object = getattr(module, name)
            globals()[name] = value
            return value
    raise AttributeError(f"module 'tidemark' has no attribute {name!r}")


def __dir__() -> list[str]:
    """List the public names, including those that are not loaded yet."""
    return sorted({*__all__, "__all__", "__doc__", "__name__", "__version__", "errors"})
