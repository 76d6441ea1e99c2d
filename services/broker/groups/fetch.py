"""Fetch: one long poll over all queues of a member; raw records borrowed from the log's mapping.

A *place* is the member's position in one queue (``sessions``). Ready places are read in turn by the
``Puller``, so the rules of a pull hold here: nothing beyond ``dispatched`` is read, tags are
compared on the broker, and there is no work per message. Each fetch moves the places; the committed
offset of the group moves by commits. A fetch moves it only over messages that the member's tags
exclude, and only when everything before them is committed. Otherwise a group that selects one tag
of many would seem to lag forever.

Step before: ``group_calls`` checked the request. Step after: ``fetch_answers`` frames the result.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, NamedTuple

from services.broker.groups.counters import GroupCounters
from services.broker.groups.deliveries import Deliveries, Delivery
from services.broker.groups.sessions import Batch, Place, Session
from services.broker.read.long_polls import Wake
from services.broker.read.pull import Puller, PullRequest
from services.broker.schema.members import Fetch
from shared.files.pull import PullResult, PullStatus
from tidemark.clock import Clock
from tidemark.errors import TidemarkError
from tidemark.formats import record
from tidemark.formats.queue_unit import UNIT, batch_range
from tidemark.formats.record_layout import LONG
from tidemark.formats.select import Wanted
from tidemark.offsets import UNIT_SIZE, Queue, QueueOffset

READS_AT_ONCE: Final = 256
"""Places read between two turns of the loop: some milliseconds."""
SLICE_COUNT_MIN: Final = 16
SLICE_SIZE_MIN: Final = 64 << 10
"""A response is shared among the ready queues in slices of at least this size: smaller ones cost
more for each queue than for its messages."""
_QUEUE_OFFSET_AT: Final = 20
_AT_THE_END: Final = frozenset({PullStatus.OFFSET_OVERFLOW_ONE, PullStatus.NO_MESSAGE_IN_QUEUE})
_OUT_OF_RANGE: Final = frozenset({PullStatus.OFFSET_TOO_SMALL, PullStatus.OFFSET_OVERFLOW_BADLY})
"""Statuses of a place outside the queue's range: the member is informed and continues inside it."""


class Piece(NamedTuple):
    """What a fetch found in one queue."""

    queue: Queue
    from_offset: int
    next_offset: int
    result: PullResult
    tags: Wanted | None = None
    """The member's tags: messages of a batch may have others."""


class Fetched(NamedTuple):
    """The result of one fetch."""

    generation: int
    pieces: list[Piece]
    session: Session
    poll_after_ms: int | None = None
    """Set if there was nothing and no capacity to hold the call: when the client should retry."""

    def take_back(self) -> None:
        """Move all places back, because the response could not be sent."""
        for piece in self.pieces:
            if piece.queue in self.session.places:
                self.session.move(piece.queue, piece.from_offset)

    def stop_at(self, piece: Piece, queue_offset: int) -> None:
        """Shorten a piece of the response: it ends before this queue offset."""
        if piece.queue in self.session.places:
            self.session.move(piece.queue, queue_offset)


class Reader(NamedTuple):
    """The member of a fetch, and facts of its group that may change while the fetch is held."""

    group: str
    session: Session
    order: bool
    broadcast: bool
    generation: Callable[[], int]
    is_member: Callable[[], bool]
    """Whether the session still belongs to a member."""
    committed: Callable[[Queue], int | None]
    """Committed offset; None in a broadcasting group, and where nothing was committed."""
    commit: Callable[[Queue, int], None]
    """Commits an offset; used where no message lies between it and the committed offset."""


class Fetches:
    """Answers the fetches of members."""

    def __init__(
        self, puller: Puller, clock: Clock, counters: GroupCounters, deliveries: Deliveries
    ) -> None:
        self._puller = puller
        self._clock = clock
        self._counters = counters
        self._deliveries = deliveries

    async def fetch(
        self,
        reader: Reader,
        request: Fetch,
        is_gone: Callable[[], bool],
        check_reads: Callable[[], None],
        *,
        divides_batches: bool = False,
    ) -> Fetched:
        """Return when there is a message, the generation changes, or the wait is over.

        divides_batches: whether the request's number of messages may end within a batch; otherwise
        batches are whole. A later fetch of the same member ends this one. is_gone: whether the
        client has closed its connection; then no message is read, so that the places do not move.
        check_reads: called after each wait; raises if the node may no longer answer for its group,
        for the same reason.
        """
        asking = reader.session.asking
        asking.begins(self._clock.monotonic())
        try:
            return await self._fetched(reader, request, is_gone, check_reads, divides_batches)
        finally:
            asking.ends(self._clock.monotonic())

    async def _fetched(
        self,
        reader: Reader,
        request: Fetch,
        is_gone: Callable[[], bool],
        check_reads: Callable[[], None],
        divides_batches: bool,
    ) -> Fetched:
        session, generation = reader.session, reader.generation()
        session.fetches += 1
        turn = session.fetches
        session.wake(Wake.CHANGED)
        deadline = self._clock.monotonic() + request.wait_ms / 1000
        moved: dict[Place, Piece] = {}
        pieces: list[Piece] = []
        poll_after_ms: int | None = None
        while True:
            # The member does not know yet of a queue that a later generation gave it. It would
            # discard those messages, and its place here would be after them.
            if reader.generation() != generation:
                break
            try:
                pieces = []
                if not is_gone():
                    pieces = self._take(reader, request, moved, divides_batches=divides_batches)
            except Exception:
                if not moved:
                    raise
                break  # first report the places that moved; the failure will occur again
            if pieces:
                break
            left_s = deadline - self._clock.monotonic()
            if left_s <= 0 or is_gone() or self._puller.long_polls.is_closed:
                break
            reads_again = True
            if session.line:
                await asyncio.sleep(0)  # a long run of filtered messages must not block the loop
            elif not self._puller.may_hold:
                poll_after_ms = self._puller.poll_after_ms(left_s)
                break
            else:
                reads_again = await self._held(session, left_s, is_gone)
            try:
                check_reads()
            except TidemarkError:
                # The member does not learn of what was passed over, as after a lost answer.
                Fetched(generation, list(moved.values()), session, None).take_back()
                raise
            if not reads_again or turn != session.fetches or not reader.is_member():
                break
        reported = {piece.queue for piece in pieces}
        pieces += [
            piece
            for place, piece in moved.items()
            if piece.queue not in reported and session.places.get(piece.queue) is place
        ]
        return Fetched(reader.generation(), pieces, session, poll_after_ms)

    async def _held(self, session: Session, timeout_s: float, is_gone: Callable[[], bool]) -> bool:
        """Wait until one of the places is ready; return whether to read again."""
        with self._puller.place():
            held = self._puller.long_polls.hold(None, appended_to=None, is_gone=is_gone)
            session.hold(held)
            timer = asyncio.get_running_loop().call_later(timeout_s, held.wake, Wake.TIME)
            try:
                why = await held.woken
            finally:
                timer.cancel()
                self._puller.long_polls.let_go(held)
                session.let_go(held)
        self._puller.ended(why)
        return why in (Wake.MESSAGE, Wake.CHANGED)

    def _take(
        self, reader: Reader, request: Fetch, moved: dict[Place, Piece], *, divides_batches: bool
    ) -> list[Piece]:
        """Read ready places until the response is full, in one step of the loop.

        Each place gets its share of what is left of the response. Otherwise the backlog of one
        queue would fill it, and the messages of the others would wait until the member has
        processed all of that.

        moved: places that moved without a message, with their pieces; this function adds to it.
        Raises the failure of a read if nothing was found before it: then that place moves to the
        end of the line. Otherwise it stays first. So a queue that fails neither stops the others
        nor is left out.
        """
        session = reader.session
        pieces: list[Piece] = []
        count_left, bytes_left = request.count_max, request.bytes_max
        for places_left in range(min(len(session.line), READS_AT_ONCE), 0, -1):
            place = next(iter(session.line))
            del session.line[place]
            if reader.order and place.handed_to > (reader.committed(place.queue) or 0):
                continue  # blocked: the commit puts it in line again
            began, handed_to = place.next_offset, place.handed_to
            count_max = min(count_left, max(SLICE_COUNT_MIN, -(-count_left // places_left)))
            bytes_max = min(bytes_left, max(SLICE_SIZE_MIN, -(-bytes_left // places_left)))
            try:
                result = self._read(place, count_max, bytes_max)
                if divides_batches:
                    result = divided(result, count_max)
                piece = self._step(reader, place, began, result)
            except Exception:
                # Damage, or a shortage of descriptors or memory. The place stays in line in any
                # case. Otherwise: 1. the node has no descriptor left for a moment; 2. the place is
                # neither ready nor watched; 3. its queue stalls for a member that seems healthy.
                place.next_offset, place.handed_to = began, handed_to
                if not pieces:
                    session.line[place] = None  # at the end, so that the others go on
                    raise
                # First the messages whose places have moved; the failure will occur again.
                session.ready_first(place)
                break
            if place in moved:
                # The member does not know of the earlier move: it would see a gap before this
                # piece, reject it, and ask for the same messages forever.
                piece = piece._replace(from_offset=moved[place].from_offset)
            if result.message_count or result.status in _OUT_OF_RANGE:
                pieces.append(piece)
                count_left -= result.message_count
                bytes_left -= result.bytes_total
                if count_left <= 0 or bytes_left <= 0:
                    break
            elif place.next_offset != began:
                moved[place] = piece
        return pieces

    def _read(self, place: Place, count_max: int, bytes_max: int) -> PullResult:
        """Read from the place on. Raises CorruptRecord, DamagedFile, OSError."""
        topic, number = place.queue
        result = self._puller.read(
            PullRequest(
                topic, number, place.next_offset, count_max, bytes_max, place.tags, 0, bulk=True
            )
        )
        if result.status is PullStatus.OFFSET_OVERFLOW_BADLY and self._exists(place):
            result = result._replace(status=PullStatus.OFFSET_OVERFLOW_ONE)
        return result

    def _step(self, reader: Reader, place: Place, began: int, result: PullResult) -> Piece:
        """Move the place to the end of what was read, and describe the move."""
        session = reader.session
        next_offset = began if result.status in _AT_THE_END else int(result.next_offset)
        place.next_offset = next_offset
        place.is_claimed = False
        piece = Piece(place.queue, began, next_offset, result, place.tags)
        if result.message_count:
            self._handed(reader, place, result)
        elif result.status is PullStatus.OFFSET_OVERFLOW_BADLY:
            self._was_ahead(reader, place)
        elif result.status is not PullStatus.OFFSET_TOO_SMALL and next_offset > began:
            self._skipped(reader, place, result)
        if reader.order and result.message_count:
            return piece  # neither in line nor watched until the commit
        if result.status in _AT_THE_END or next_offset >= result.max_offset:
            session.watch(place)
        else:
            session.line[place] = None
        return piece

    def _exists(self, place: Place) -> bool:
        """Return whether the queue reaches the place, even if a part of it is invisible now.

        1. A group is at the end of a queue; 2. reput finds the queue files damaged and rebuilds
        them from the log's start; 3. the queue changes its owner, and seems to end far before the
        committed offset. Moving the place to that end would deliver everything again.
        """
        return place.next_offset <= self._puller.next_of(place.queue)

    def _handed(self, reader: Reader, place: Place, result: PullResult) -> None:
        """Note which member received the messages, and when."""
        topic, _ = place.queue
        end = end_of_messages(result)
        now_ms = self._clock.wall_ms()
        delivery = Delivery(
            int(result.looked_from), end, reader.session.member, reader.generation(), now_ms
        )
        again = self._deliveries.note(reader.group, place.queue, delivery)
        stored_ms = record.peek_store_timestamp(result.stretches[0], 0) or now_ms
        place.handed_to = end
        place.batches.append(Batch(end, stored_ms))
        self._counters.delivered(
            reader.group,
            topic,
            redelivered=0 if reader.broadcast else again,
            filtered=result.filtered,
            oldest_delay_s=max(0, now_ms - stored_ms) / 1000,
        )

    def _was_ahead(self, reader: Reader, place: Place) -> None:
        """Lower the committed offset too if it lies beyond the end, as files of RocketMQ may have
        it: it would hide the next messages."""
        place.handed_to = min(place.handed_to, place.next_offset)
        place.batches.clear()
        committed = reader.committed(place.queue)
        if committed is not None and committed > place.next_offset:
            reader.commit(place.queue, place.next_offset)

    def _skipped(self, reader: Reader, place: Place, result: PullResult) -> None:
        """Commit over messages that the tags exclude, if everything before them is committed."""
        topic, _ = place.queue
        self._counters.delivered(reader.group, topic, filtered=result.filtered)
        committed = reader.committed(place.queue)
        if committed is not None and place.handed_to <= committed < place.next_offset:
            reader.commit(place.queue, place.next_offset)


def divided(result: PullResult, count_max: int) -> PullResult:
    """Return the result of a pull without the messages of its last batch that are too many.

    Its records stay whole; the messages from ``next_offset`` on are not shown.
    """
    if result.message_count <= count_max:
        return result
    (first,) = LONG.unpack_from(result.stretches[0], _QUEUE_OFFSET_AT)
    end = QueueOffset(max(first, result.looked_from) + count_max)
    return result._replace(next_offset=end, message_count=count_max)


def end_of_messages(result: PullResult) -> int:
    """Return the queue offset after the last message of a pull that found some.

    ``next_offset`` is larger if the units that follow were skipped: excluded messages count as done
    as soon as the messages before them are, so a commit need not reach them.
    """
    looked = int(result.next_offset - result.looked_from)
    if looked == result.message_count:
        return int(result.next_offset)
    last = result.stretches[-1]
    unit_size = result.unit_size
    # In a batch queue fewer units were examined, and those after them begin at next_offset.
    for index in range(min(looked, len(result.units) // unit_size) - 1, -1, -1):
        _, size, _ = UNIT.unpack_from(result.units, index * unit_size)
        first = int(result.looked_from) + index
        after = first + 1
        if unit_size != UNIT_SIZE:
            first, after = batch_range(result.units, index * unit_size)
        if first < result.next_offset < after:
            break  # the batch was divided there
        at = len(last) - size
        if 0 < size <= len(last) and after <= result.next_offset:
            (number,) = LONG.unpack_from(last, at + _QUEUE_OFFSET_AT)
            if number == first:
                return after
    return int(result.next_offset)
