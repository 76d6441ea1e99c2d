"""Redrive: sends dead letters again, each of them once.

A letter's copy goes to the topic that it was first sent to, where every group sees a new message,
or only to its own group, through the retry topic. Copies are appended in small batches, each in one
piece. The copy itself marks the letter as redriven (``dead_letters``), so a call that failed
half-way, or died with the process, can simply be repeated. Letters that cannot be sent, for example
because their topic was deleted, are counted and listed; they do not hold up others.
Step before: ``retry_calls``. Step after: an append, then dispatch like any message.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

from services.broker.groups.copies import Copies
from services.broker.groups.dead_letters import (
    BYTES_AT_ONCE,
    EXAMINED_MAX,
    LETTERS_AT_ONCE,
    DeadLetters,
    LetterFilter,
    Redriven,
)
from services.broker.log.append import FILE_TRIES
from services.broker.send import queue_choice
from services.broker.send.batches import Batches
from services.broker.state.topics import Topics, check_user_name
from tidemark.errors import (
    AckTimeout,
    BadName,
    Drained,
    FileNotReady,
    NotPermitted,
    NotServing,
    TidemarkError,
    UnknownTopic,
)
from tidemark.formats import batch, nack, properties
from tidemark.formats.batch import WireMessage
from tidemark.formats.nack import RedriveOrigin
from tidemark.formats.record import Record
from tidemark.formats.runs import Run
from tidemark.offsets import PhysicalOffset

log = logging.getLogger(__name__)

_SHARDING_KEY: Final = properties.SHARDING_KEY.encode()


COMPRESSED: Final = 1
"""SYSFLAG bit of a message whose client has compressed the body (docs/formats.md, 2.3)."""


class GroupConfigs(Protocol):
    """The configurations of groups, as far as this module needs them."""

    async def retry_topic(self, name: str) -> str:
        """Return the group's retry topic; it exists on return."""
        ...


class RedriveRequest(NamedTuple):
    """One checked request."""

    to_group: bool
    """True: only this group gets the copies, in its retry topic; False: the original topics do."""
    filter: LetterFilter
    from_offset: int
    """Queue offset in the dead-letter topic at which to begin."""
    matched_max: int
    dry_run: bool


class RedriveResult(NamedTuple):
    """The result of one call."""

    matched: int
    """Letters read that the filter selects."""
    redriven: int
    """Letters sent again; with dry_run: letters that would be."""
    skipped: int
    """Letters that had been sent again before."""
    refusals: Sequence[dict[str, Any]]
    """Letters that cannot be sent, by topic and reason."""
    next_offset: int
    """Queue offset at which the next call continues."""
    max_offset: int
    dry_run: bool

    def as_dict(self) -> dict[str, Any]:
        """Return the body of the response."""
        return {
            **self._asdict(),
            "refused": sum(each["count"] for each in self.refusals),
            "done": self.next_offset >= self.max_offset,
        }


class _Copy(NamedTuple):
    """A letter and the message to append for it."""

    origin: RedriveOrigin
    run: Run


class _Call:
    """State of one call."""

    def __init__(self) -> None:
        self.matched = self.redriven = self.skipped = 0
        self.end: PhysicalOffset | None = None
        """Physical offset after the last copy."""
        self.topics: dict[str, TidemarkError | None] = {}
        """Topic → why nothing can be sent to it; None: it existed when it was looked up."""
        self.refused: Counter[tuple[str, str, str]] = Counter()

    def refuse(self, topic: str, error: TidemarkError) -> None:
        """Count a letter that cannot be sent."""
        self.refused[topic, error.code, error.detail] += 1

    def refusals(self) -> list[dict[str, Any]]:
        """Return the refusals as the response shows them."""
        return [
            {"topic": topic, "code": code, "detail": detail, "count": count}
            for (topic, code, detail), count in self.refused.items()
        ]


def _cannot_be_compressed(topic: str) -> NotPermitted:
    return NotPermitted(
        f"topic {topic!r} has batch queues, and the body of the letter is compressed: a batch "
        "cannot say so of its messages. Nothing was stored.",
        "Redrive it to its group, or send its body again.",
        topic=topic,
        queue_type="batch",
    )


def _target(group: str, letter: Record, request: RedriveRequest) -> str:
    """Return the topic that a letter's copy goes to."""
    return nack.retry_topic(group) if request.to_group else nack.original_topic(letter)


class Redrive:
    """Sends dead letters again."""

    def __init__(
        self,
        copies: Copies,
        letters: DeadLetters,
        topics: Topics,
        configs: GroupConfigs,
        batches: Batches,
        *,
        bytes_at_once: int = BYTES_AT_ONCE,
    ) -> None:
        """batches: makes inner batches of the copies for batch topics. bytes_at_once: record bytes
        of one append, which have to fit into a commit log file."""
        self._copies_to = copies
        self.letters = letters
        """The dead letters, also for calls that only read them."""
        self._topics = topics
        self._configs = configs
        self._batches = batches
        self._store_host = copies.store_host
        self._bytes_at_once = bytes_at_once

    async def redrive(self, group: str, request: RedriveRequest) -> RedriveResult:
        """Send dead letters of the group again; on disk on return.

        A call ends with the last letter, after matched_max selected ones, or after reading
        EXAMINED_MAX; ``next_offset`` says where. Raises IndexDisabled, DispatchBehind, Overloaded,
        what an append raises, and AckTimeout. Letters sent until then are not sent again by the
        next call.
        """
        self.letters.check_can_tell()
        call = _Call()
        at, end, examined = request.from_offset, 0, 0
        while examined < EXAMINED_MAX and call.matched < request.matched_max:
            page = self.letters.page(group, at, LETTERS_AT_ONCE, self._bytes_at_once)
            # The end is read at the beginning: letters that die meanwhile are for the next call.
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
            examined += len(letters)
            await self._redrive_some(group, wanted, request, call)
            if at >= end:
                break
            await asyncio.sleep(0)  # other tasks run between two batches
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
        """Send again those of the letters that were not redriven yet, in one append."""
        for letter in letters:
            await self._find_topic(group, letter, request, call)
        self.letters.check_can_tell()
        # No await from here to the claim: any later check finds the letters claimed.
        free = [
            letter
            for letter in letters
            if not self.letters.is_claimed(RedriveOrigin(group, letter.queue_offset))
        ]
        call.skipped += len(letters) - len(free)
        claimed = {RedriveOrigin(group, letter.queue_offset) for letter in free}
        if not request.dry_run:
            self.letters.claim(claimed)
        try:
            missing: list[Record] = []
            for letter in free:
                if await self._was_sent_again(group, letter):
                    call.skipped += 1
                else:
                    missing.append(letter)
            if request.dry_run:
                call.redriven += len(self._copies(group, missing, request, call))
                return
            stored = await self._append_copies(group, missing, request, call)
        except BaseException:
            if not request.dry_run:
                self.letters.give_back(claimed)
            raise
        self.letters.give_back(claimed - stored)

    async def _append_copies(
        self, group: str, letters: Sequence[Record], request: RedriveRequest, call: _Call
    ) -> set[RedriveOrigin]:
        """Append the letters' copies in one piece; return the letters that have a copy now.

        The topics are looked up again after each wait, in the step of the append. Otherwise: 1. a
        topic is found; 2. it is deleted while the copies are looked up, or while a log file is
        created; 3. the copies are appended after its deletion: they cannot be read, and no redrive
        sends them again; 4. the topic is created again, and shows them.
        """
        for tries_left in range(FILE_TRIES, 0, -1):
            copies = self._copies(group, letters, request, call)
            if not copies:
                return set()
            # Runs of one queue must be adjacent; the sort keeps the letters' order in each queue.
            runs = sorted((copy.run for copy in copies), key=lambda run: (run.topic, run.queue_id))
            try:
                appended = self._copies_to.append.append_now(self._batches.of(runs))
                break
            except FileNotReady:
                if tries_left == 1:
                    raise
                kept = {copy.origin.queue_offset for copy in copies}
                letters = [letter for letter in letters if letter.queue_offset in kept]
                await self._copies_to.append.file_made()
        sizes = memoryview(appended.sizes).cast("I")
        for run, size in zip(runs, sizes, strict=True):
            self._copies_to.on_stored(run.topic, 1, size)
        origins = {copy.origin for copy in copies}
        self.letters.stored(origins, appended.end)
        call.end = appended.end
        call.redriven += len(copies)
        return origins

    async def _was_sent_again(self, group: str, letter: Record) -> bool:
        """Return whether the letter was redriven before.

        Raises DispatchBehind if that is unknown: such a letter must not count as skipped.
        """
        while (known := await self.letters.was_sent_again(group, letter)) is Redriven.UNKNOWN:
            self.letters.check_can_tell()
        return known is Redriven.YES

    async def _find_topic(
        self, group: str, letter: Record, request: RedriveRequest, call: _Call
    ) -> None:
        """Find or create the topic that the letter's copy goes to, once for each topic of a
        call."""
        topic = _target(group, letter, request)
        if topic in call.topics:
            return
        call.topics[topic] = None
        try:
            if request.to_group:
                if self._topics.find(topic) is None and not request.dry_run:
                    await self._configs.retry_topic(group)
            elif not request.dry_run:  # a dry run creates no topic
                await self._topics.for_sending(topic)
            else:
                check_user_name(topic)
        except (BadName, UnknownTopic, NotPermitted, Drained) as error:
            call.topics[topic] = error

    def _queues_now(self, topic: str, request: RedriveRequest, call: _Call) -> int | TidemarkError:
        """Return the present number of queues of a topic, or why nothing can be sent to it."""
        error = call.topics[topic]
        if error is not None:
            return error
        if request.to_group and request.dry_run and self._topics.find(topic) is None:
            return 1  # the redrive will create it
        try:
            return max(1, self._topics.sendable(topic).queues)
        except (UnknownTopic, NotPermitted, NotServing) as now:
            return now

    def _copies(
        self, group: str, letters: Sequence[Record], request: RedriveRequest, call: _Call
    ) -> list[_Copy]:
        """Return what to append for the letters with the topics as they are now.

        Letters that cannot be sent are counted as refused.
        """
        topics = {_target(group, letter, request) for letter in letters}
        queues = {topic: self._queues_now(topic, request, call) for topic in topics}
        made = (self._copy(group, letter, request, call, queues) for letter in letters)
        return [copy for copy in made if copy is not None]

    def _copy(
        self,
        group: str,
        letter: Record,
        request: RedriveRequest,
        call: _Call,
        queues_of: Mapping[str, int | TidemarkError],
    ) -> _Copy | None:
        """Return what to append for a letter; None if it cannot be sent, which is counted."""
        topic = _target(group, letter, request)
        queues = queues_of[topic]
        if isinstance(queues, TidemarkError):
            call.refuse(nack.original_topic(letter), queues)
            return None
        if letter.sys_flag & COMPRESSED and self._topics.is_batch(topic):
            call.refuse(topic, _cannot_be_compressed(topic))
            return None
        raw = nack.redriven(letter, group, to_group=request.to_group)
        if len(raw) > self._copies_to.properties_size_max:
            # RocketMQ fills letters to the last byte. The retries of the copy need some room.
            room = self._copies_to.properties_size_max - nack.PROPERTIES_ROOM
            raw, dropped = nack.shortened(raw, room)
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
        """Return the queue for the copy: with a sharding key, the queue of that key."""
        key = properties.find(letter.properties, _SHARDING_KEY)
        if key is None:
            return self._copies_to.pick(queues)
        return queue_choice.choose(topic, queues, [properties.text(key)], 0)[0]

    async def _durable(self, call: _Call) -> None:
        assert call.end is not None
        try:
            await self._copies_to.durability.durable(call.end)
        except NotServing as stopping:
            raise AckTimeout(
                f"the node is stopping: {call.redriven} dead letters were sent again, but not yet "
                "on disk. The outcome is unknown: they may survive, or be lost with the node.",
                "Call it again when the node is back: none is sent twice.",
                redriven=call.redriven,
            ) from stopping
