"""Makes inner batches of the runs for topics with batch queues.

Every path that appends messages to a user's topic passes its runs through here: sends, deliveries
of delayed messages, and redriven dead letters. Runs of other topics stay as they are. Step before:
the messages have their queues. Step after: ``append`` numbers the runs.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from services.broker.limits import BATCH_SIZE_MAX
from services.broker.log.log_context import LogContext
from services.broker.send.unique_ids import UniqueIds
from services.broker.state.topics import Topics
from tidemark.formats import inner_batch, native, properties
from tidemark.formats.batch_parts import Part
from tidemark.formats.runs import Run

_UNIQUE_ID: Final = properties.UNIQ_KEY.encode("ascii")


class Batches:
    """Makes inner batches. Belongs to one loop."""

    def __init__(self, log_context: LogContext, topics: Topics) -> None:
        self._topics = topics
        self._unique_ids = UniqueIds(log_context.clock, log_context.host)
        self._properties_size_max = properties.size_max(
            record_crc=log_context.config.store.record_crc
        )

    def of(self, runs: Iterable[Run]) -> list[Run]:
        """Return the runs in order, those of batch topics as inner batches."""
        made: list[Run] = []
        for run in runs:
            if self._topics.is_batch(run.topic):
                made += self.of_run(run)
            else:
                made.append(run)
        return made

    def of_run(self, run: Run) -> list[Run]:
        """Return the inner batches that the messages of a run become, nearly always one.

        The system flag of a run describes single messages, such as a compressed body. A batch
        cannot say so of its messages, and its own body is not compressed: the flag is dropped.
        """
        parts = native.split(
            run.entries,
            body_size_max=BATCH_SIZE_MAX,
            properties_size_max=self._properties_size_max,
        )
        return [
            run._replace(
                entries=part.entries,
                message_count=part.message_count,
                sys_flag=0,
                batch_properties=self.properties_of(part),
            )
            for part in parts
        ]

    def properties_of(self, part: Part) -> bytes:
        """Return the properties of a batch; it gets an id if its first message has none."""
        unique_id = part.unique_id
        return inner_batch.encode_properties(
            self._unique_ids.make() if unique_id is None else properties.text(unique_id),
            part.message_count,
            tags=part.tags,
            keys=part.keys,
        )


def batch_id(batch_properties: bytes) -> str:
    """Return the unique id of a batch with these properties."""
    found = properties.find(batch_properties, _UNIQUE_ID)
    assert found is not None, "every batch has an id"
    return properties.text(found)
