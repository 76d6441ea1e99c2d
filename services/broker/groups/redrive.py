"""Redrive: dead letters sent again, each of them once.

A letter's copy goes to the topic that it was first sent to, where every group sees a new message,
or only to its own group, into the retry topic. Copies are appended some at a time, as one piece;
the mark that a letter was redriven is the copy itself (``dead_letters``), so a call that failed
half-way, or died with the process, is simply made again. Letters that cannot be sent, because their
topic is gone say, are counted and named, and do not keep others back.
Before: ``retry_calls``. After: an append, then dispatch like any message.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, Protocol

from services.broker import queue_choice
from services.broker.append import Append
from services.broker.groups.dead_letters import (
    BYTES_AT_ONCE,
    LETTERS_AT_ONCE,
    LOOKED_AT_MAX,
    DeadLetters,
    LetterFilter,
    Redriven,
)
from services.broker.groups.send_back import Stored
from services.broker.lasting import Lasting
from services.broker.topics import Topics, check_user_name
from tidemark.errors import (
    AckTimeout,
    BadName,
    NotPermitted,
    NotServing,
    TidemarkError,
    UnknownTopic,
)
from tidemark.formats import batch, properties, send_back
from tidemark.formats.batch import WireMessage
from tidemark.formats.hosts import Host
from tidemark.formats.record import Record
from tidemark.formats.runs import Run
from tidemark.formats.send_back import RedriveOrigin
from tidemark.offsets import PhysicalOffset

log = logging.getLogger(__name__)

_SHARDING_KEY: Final = properties.SHARDING_KEY.encode()


class GroupConfigs(Protocol):
    """What this module needs of the groups' configurations."""

    async def retry_topic(self, name: str) -> str:
        """The group's retry topic, which exists on return."""
        ...


class RedriveRequest(NamedTuple):
    """One checked request."""

    to_group: bool
    """To this group alone, by its retry topic; else to the topics that the letters came from."""
    filter: LetterFilter
    from_offset: int
    """Queue offset in the dead-letter topic at which to begin."""
    matched_max: int
    dry_run: bool


class RedriveResult(NamedTuple):
    """What one call did."""

    matched: int
    """Letters that the filter takes, of those looked at."""
    redriven: int
    """Sent again; with dry_run: that would be."""
    skipped: int
    """Sent again before."""
    refusals: Sequence[dict[str, Any]]
    """Letters that cannot be sent, by topic and reason."""
    next_offset: int
    """Where the next call goes on."""
    max_offset: int
    dry_run: bool

    def as_dict(self) -> dict[str, Any]:
        """The body of the answer."""
        return {
            **self._asdict(),
            "refused": sum(each["count"] for each in self.refusals),
            "done": self.next_offset >= self.max_offset,
        }


class _Copy(NamedTuple):
    """A letter and what is to be appended for it."""

    origin: RedriveOrigin
    run: Run


class _Call:
    """What one call has met so far."""

    def __init__(self) -> None:
        self.matched = self.redriven = self.skipped = 0
        self.end: PhysicalOffset | None = None
        """Of the last copy."""
        self.queues: dict[str, int | TidemarkError] = {}
        """Topic → its number of queues, or why nothing can be sent there."""
        self.refused: Counter[tuple[str, str, str]] = Counter()

    def refuse(self, topic: str, error: TidemarkError) -> None:
        """Count a letter that cannot be sent."""
        self.refused[topic, error.code, error.detail] += 1

    def refusals(self) -> list[dict[str, Any]]:
        """As the answer shows them."""
        return [
            {"topic": topic, "code": code, "detail": detail, "count": count}
            for (topic, code, detail), count in self.refused.items()
        ]


class Redrive:
    """Sends dead letters again."""

    def __init__(
        self,
        append: Append,
        lasting: Lasting,
        letters: DeadLetters,
        topics: Topics,
        configs: GroupConfigs,
        store_host: Host,
        *,
        properties_size_max: int,
        bytes_at_once: int = BYTES_AT_ONCE,
        on_stored: Stored = lambda *_: None,
        pick: Callable[[int], int] = random.randrange,
    ) -> None:
        """properties_size_max: bytes that a record's properties may take, without the record CRC.
        bytes_at_once: record bytes of one append, which have to fit into a commit log file.
        on_stored: called with topic, messages and bytes of what is in the log. pick: one of so many
        queues, for a letter without sharding key.
        """
        self._append = append
        self._lasting = lasting
        self.letters = letters
        """Where the letters are; also for who only wants to see them."""
        self._topics = topics
        self._configs = configs
        self._store_host = store_host
        self._properties_size_max = properties_size_max
        self._bytes_at_once = bytes_at_once
        self._on_stored = on_stored
        self._pick = pick

    async def redrive(self, group: str, request: RedriveRequest) -> RedriveResult:
        """Send dead letters of the group again; on disk on return.

        Ends with the last letter there was, after matched_max of them, or after LOOKED_AT_MAX
        looks; ``next_offset`` says where. Raises IndexDisabled, DispatchBehind, Overloaded,
        what an append raises, and AckTimeout; what was sent until then is not sent again by the
        next call.
        """
        self.letters.check_can_tell()
        call = _Call()
        at, end, looked_at = request.from_offset, 0, 0
        while looked_at < LOOKED_AT_MAX and call.matched < request.matched_max:
            page = self.letters.page(group, at, LETTERS_AT_ONCE, self._bytes_at_once)
            # The end is that of the first look: letters that die meanwhile are for the next call.
            end = end or page.max_offset
            letters = [letter for letter in page.messages if letter.queue_offset < end]
            if not letters and page.next_offset <= at:
                break
            at = page.next_offset
            if len(letters) < len(page.messages):
                at = end
            wanted: list[Record] = []
            for letter in letters:
                if call.matched == request.matched_max:
                    at = letter.queue_offset
                    break
                if request.filter.matches(letter):
                    call.matched += 1
                    wanted.append(letter)
            looked_at += len(letters)
            await self._redrive_some(group, wanted, request, call)
            if at >= end:
                break
            await asyncio.sleep(0)  # whoever waits for the loop goes first
        if call.end is not None:
            await self._durable(call)
        return RedriveResult(
            call.matched,
            call.redriven,
            call.skipped,
            call.refusals(),
            at,
            end,
            request.dry_run,
        )

    async def _redrive_some(
        self, group: str, letters: Sequence[Record], request: RedriveRequest, call: _Call
    ) -> None:
        """Send again those of the letters that were not, in one append."""
        for letter in letters:
            await self._find_queues(group, letter, request, call)
        self.letters.check_can_tell()
        # From here to the claim nothing else runs: whoever looks next finds them claimed.
        free = [
            letter
            for letter in letters
            if not self.letters.is_claimed(RedriveOrigin(group, letter.queue_offset))
        ]
        call.skipped += len(letters) - len(free)
        claimed = [RedriveOrigin(group, letter.queue_offset) for letter in free]
        if not request.dry_run:
            self.letters.claim(claimed)
        copies: list[_Copy] = []
        try:
            for letter in free:
                if await self._was_sent_again(group, letter):
                    call.skipped += 1
                elif (copy := self._copy(group, letter, request, call)) is not None:
                    copies.append(copy)
        except BaseException:
            if not request.dry_run:
                self.letters.give_back(claimed)
            raise
        if request.dry_run:
            call.redriven += len(copies)
            return
        origins = [copy.origin for copy in copies]
        self.letters.give_back(set(claimed) - set(origins))
        if not copies:
            return
        try:
            # Runs of one queue have to lie side by side; the sort keeps the letters' order in each.
            runs = sorted((copy.run for copy in copies), key=lambda run: (run.topic, run.queue_id))
            appended = await self._append.append(runs)
        except BaseException:
            self.letters.give_back(origins)
            raise
        sizes = memoryview(appended.sizes).cast("I")
        for run, size in zip(runs, sizes, strict=True):
            self._on_stored(run.topic, 1, size)
        self.letters.stored(origins, appended.end)
        call.end = appended.end
        call.redriven += len(copies)

    async def _was_sent_again(self, group: str, letter: Record) -> bool:
        """Raises DispatchBehind while it cannot be known: such a letter was not skipped."""
        while (known := await self.letters.was_sent_again(group, letter)) is Redriven.UNKNOWN:
            self.letters.check_can_tell()
        return known is Redriven.YES

    async def _find_queues(
        self, group: str, letter: Record, request: RedriveRequest, call: _Call
    ) -> None:
        """Learn of the topic that the letter's copy goes to, once for each topic of a call."""
        origin = send_back.original_topic(letter)
        topic = send_back.retry_topic(group) if request.to_group else origin
        if topic in call.queues:
            return
        try:
            if request.to_group:
                found = self._topics.find(topic)
                if found is None and not request.dry_run:
                    found = self._topics.find(await self._configs.retry_topic(group))
                call.queues[topic] = max(1, found.queues if found is not None else 1)
            elif request.dry_run:
                call.queues[topic] = self._would_take(topic)
            else:
                call.queues[topic] = (await self._topics.for_sending(topic)).queues
        except (BadName, UnknownTopic, NotPermitted) as error:
            call.queues[topic] = error

    def _would_take(self, topic: str) -> int:
        """Queues of a topic that may be sent to, as it is now: a dry run makes none."""
        found = self._topics.get(check_user_name(topic))
        if not found.is_writable:
            raise NotPermitted(f"topic {topic!r} takes no messages.", topic=topic, perm=found.perm)
        return found.queues

    def _copy(
        self, group: str, letter: Record, request: RedriveRequest, call: _Call
    ) -> _Copy | None:
        """What to append for a letter; None if it cannot be sent, which is noted."""
        origin = send_back.original_topic(letter)
        topic = send_back.retry_topic(group) if request.to_group else origin
        queues = call.queues[topic]
        if isinstance(queues, TidemarkError):
            call.refuse(origin, queues)
            return None
        raw = send_back.redriven(letter, group, to_group=request.to_group)
        if len(raw) > self._properties_size_max:
            # RocketMQ fills letters to the last byte. With room for the retries of the copy.
            room = self._properties_size_max - send_back.PROPERTIES_ROOM
            raw, dropped = send_back.shortened(raw, room)
            log.warning(
                "a dead letter has no room for its place in the copy; the copy lacks properties",
                extra={
                    "event": "redriven-shortened",
                    "group": group,
                    "message_id": letter.message_id,
                    "topic": topic,
                    "count": len(dropped),
                },
            )
        run = Run(
            topic,
            self._queue(letter, topic, queues),
            batch.encode([WireMessage(letter.body, raw, letter.flag)]),
            1,
            letter.born_host,
            self._store_host,
            letter.born_timestamp_ms,
            letter.sys_flag,
        )
        return _Copy(RedriveOrigin(group, letter.queue_offset), run)

    def _queue(self, letter: Record, topic: str, queues: int) -> int:
        """Where the copy goes: with its sharding key to where messages of that key are."""
        key = properties.find(letter.properties, _SHARDING_KEY)
        if key is None:
            return self._pick(queues)
        return queue_choice.choose(topic, queues, [properties.text(key)], 0)[0]

    async def _durable(self, call: _Call) -> None:
        assert call.end is not None
        try:
            await self._lasting.durable(call.end)
        except NotServing as stopping:
            raise AckTimeout(
                f"the node stops: {call.redriven} dead letters are sent again, and that is not on "
                "disk yet. The outcome is unknown: it may yet be there, or be lost with the node.",
                "Call it again when the node is back: none is sent twice.",
                redriven=call.redriven,
            ) from stopping
