"""The calls to one broker group: a broker with its slaves, or a standalone broker.

A client without name service has one; ``cluster`` has one for each broker group of the cluster.
"""

from __future__ import annotations

from tidemark.client.admin import Admin
from tidemark.client.batching import Limits
from tidemark.client.connection import Connection
from tidemark.client.consumer import Consumer
from tidemark.client.dead_letters import DeadLetters
from tidemark.client.delayed import Delayed
from tidemark.client.groups import Groups
from tidemark.client.producer import Producer
from tidemark.client.queue_names import QueueNames


class BrokerGroup(Admin, Consumer):
    """All calls to one broker group, with the numbers of its own queues."""

    def __init__(self, connection: Connection, limits: Limits, names: QueueNames) -> None:
        """names: how programs name its queues."""
        super().__init__(connection, names)
        self.name = names.broker_group or ""
        """Empty if it is alone."""
        self.producer = Producer(connection, limits)
        self.groups = Groups(connection, names)
        self.delayed = Delayed(connection)
        self.dead_letters = DeadLetters(connection)
