"""The lease session: what is known, what is repeated, until when a master may answer."""

from __future__ import annotations

import random
from typing import NamedTuple

import pytest

from services.ha.core.effects import Effect, LeaseCreate, LeaseGet, LeasePut
from services.ha.core.events import LeaseAnswered, LeaseOutcome
from services.ha.lease.session import ATTEMPTS_KEPT, HURRIED_MAX, Answer, LeaseSession, WriteOutcome
from services.ha.lease.value import Holder, Lease, Stored
from shared.cluster.time_rules import LOCAL
from tests.support.for_each import for_each
from tidemark.offsets import Epoch

A = Holder("a", "a" * 32, "000000000000000a")
B = Holder("b", "b" * 32, "000000000000000b")
MINE = Lease(A, Epoch(4), (A.member, B.member), 7, 1, ("a", "b"), renewed=1)
THEIRS = MINE._replace(holder=B)
UNTIL = LOCAL.lease_ms - LOCAL.margin_ms


def stored(lease: Lease, version: str = "10", uid: str = "u") -> Stored:
    return Stored(lease, version, uid)


def session(seen: tuple[int, int] = (0, 0)) -> LeaseSession:
    return LeaseSession(A, LOCAL, seen, random.Random(1).random)


def read(subject: LeaseSession, found: Stored, now_ms: int = 0) -> Answer:
    (effect,) = subject.read(now_ms)
    assert isinstance(effect, LeaseGet)
    return subject.answered(LeaseAnswered(effect.request, LeaseOutcome.FOUND, found), now_ms)


def put(effects: list[Effect]) -> LeasePut:
    (effect,) = effects
    assert isinstance(effect, LeasePut)
    return effect


def get(effects: list[Effect]) -> LeaseGet:
    (effect,) = effects
    assert isinstance(effect, LeaseGet)
    return effect


def unknown(subject: LeaseSession, effect: LeasePut | LeaseGet, now_ms: int) -> None:
    outcome = LeaseAnswered(effect.request, LeaseOutcome.UNKNOWN, reason="no answer")
    assert subject.answered(outcome, now_ms) == Answer([])


def repeated(subject: LeaseSession, base: Stored, now_ms: int) -> LeasePut:
    """Repeat a write without an answer: a read comes first, and proves nothing."""
    look = get(subject.tick(now_ms))
    assert answered(subject, look, LeaseOutcome.FOUND, base, now_ms=now_ms) == Answer([])
    return put(subject.tick(now_ms))


def answered(
    subject: LeaseSession,
    effect: LeasePut | LeaseGet | LeaseCreate,
    outcome: LeaseOutcome,
    found: Stored | None = None,
    now_ms: int = 0,
) -> Answer:
    return subject.answered(LeaseAnswered(effect.request, outcome, found), now_ms)


def test_nothing_is_known_before_the_first_read() -> None:
    subject = session()
    assert (subject.stored, subject.absent, subject.can_write) == (None, False, False)
    assert subject.due(0)
    assert subject.unchanged_ms(5) is None
    assert subject.deadline_ms(4) is None


def test_a_renewal_moves_the_deadline_from_the_time_before_it_was_sent() -> None:
    subject = session()
    read(subject, stored(MINE))
    assert subject.deadline_ms(4) is None  # of a term that this process did not begin or renew
    renewal = put(subject.renew(1000))
    assert renewal.base == stored(MINE)
    assert renewal.lease == MINE._replace(renewed=renewal.lease.renewed)
    assert renewal.lease.renewed != MINE.renewed
    answer = answered(
        subject, renewal, LeaseOutcome.APPLIED, stored(renewal.lease, "11"), now_ms=1400
    )
    assert answer == Answer([], WriteOutcome(MINE, applied=True))
    assert subject.deadline_ms(4) == 1000 + UNTIL
    assert subject.deadline_ms(5) is None
    assert subject.latency_ms == 400


def test_every_write_differs_from_what_is_there_and_from_other_starts() -> None:
    seen = set()
    for process in ("000000000000000a", "000000000000000c"):
        subject = LeaseSession(A._replace(process=process), LOCAL, (0, 0), random.Random(1).random)
        read(subject, stored(MINE))
        for version in range(11, 31):
            renewal = put(subject.propose(THEIRS, 0))
            answered(subject, renewal, LeaseOutcome.APPLIED, stored(renewal.lease, str(version)))
            assert renewal.lease.renewed not in seen
            assert 0 < renewal.lease.renewed < 1 << 63
            seen.add(renewal.lease.renewed)


def test_an_unknown_write_is_repeated_on_the_same_version_and_counts_when_that_is_applied() -> None:
    subject = session()
    read(subject, stored(MINE))
    smaller = MINE._replace(in_sync=(A.member,), in_sync_version=8)
    first = put(subject.propose(smaller, 100))
    unknown(subject, first, 600)
    assert subject.unsettled == smaller
    assert (subject.free, subject.can_write, subject.due(99_999)) == (False, False, False)
    assert subject.read(600) == []
    second = repeated(subject, stored(MINE), 600)
    assert (second.base, second.lease.in_sync) == (first.base, (A.member,))
    answer = answered(subject, second, LeaseOutcome.APPLIED, stored(second.lease, "11"), now_ms=700)
    assert answer.settled == WriteOutcome(smaller, applied=True)
    assert subject.deadline_ms(4) == 600 + UNTIL
    assert subject.free


def test_a_lost_answer_is_found_by_the_next_read() -> None:
    # If every answer to a write is lost, writes alone would never show the outcome.
    subject = session()
    read(subject, stored(MINE))
    first = put(subject.renew(100))
    unknown(subject, first, 600)
    answer = answered(
        subject, get(subject.tick(600)), LeaseOutcome.FOUND, stored(first.lease, "11"), now_ms=610
    )
    assert answer == Answer([], WriteOutcome(MINE, applied=True))
    assert subject.deadline_ms(4) == 100 + UNTIL  # of the attempt that was applied


def test_a_write_and_a_read_take_turns_while_nothing_is_answered() -> None:
    subject = session()
    read(subject, stored(MINE))
    unknown(subject, put(subject.renew(0)), 500)
    for now_ms in range(500, 5000, 1000):
        unknown(subject, get(subject.tick(now_ms)), now_ms + 500)
        unknown(subject, put(subject.tick(now_ms + 500)), now_ms + 1000)


def test_a_lost_answer_is_found_by_a_read_after_the_repetition_was_refused() -> None:
    # The write was applied after the read: the repetition conflicts with the own success.
    subject = session()
    read(subject, stored(MINE))
    first = put(subject.renew(100))
    unknown(subject, first, 600)
    second = repeated(subject, stored(MINE), 600)
    again = answered(subject, second, LeaseOutcome.CONFLICT, now_ms=650)
    look = get(again.effects)
    assert again.settled is None
    assert subject.unsettled == MINE
    answer = answered(subject, look, LeaseOutcome.FOUND, stored(first.lease, "11"), now_ms=700)
    assert answer == Answer([], WriteOutcome(MINE, applied=True))
    assert subject.deadline_ms(4) == 100 + UNTIL  # of the attempt that was applied


def test_a_read_that_shows_the_old_version_proves_nothing() -> None:
    subject = session()
    read(subject, stored(MINE))
    grown = MINE._replace(in_sync_version=8)
    first = put(subject.propose(grown, 0))
    look = get(answered(subject, first, LeaseOutcome.CONFLICT, now_ms=10).effects)
    assert answered(subject, look, LeaseOutcome.FOUND, stored(MINE), now_ms=20) == Answer([])
    assert subject.unsettled == grown
    again = put(subject.tick(20))
    assert again.base == first.base
    assert subject.unsettled == grown


def test_an_edit_by_hand_between_read_and_write_costs_one_conflict() -> None:
    subject = session()
    read(subject, stored(MINE))
    renewal = put(subject.renew(0))
    look = get(answered(subject, renewal, LeaseOutcome.CONFLICT).effects)
    answer = answered(subject, look, LeaseOutcome.FOUND, stored(MINE, "11"), now_ms=20)
    assert answer.settled == WriteOutcome(MINE, applied=False)
    assert subject.holds(4)
    assert subject.due(20)  # at once: a process that edits it again must not be first every time
    assert put(subject.renew(200)).base == stored(MINE, "11")
    assert subject.conflicts == 1


def test_a_lost_campaign_is_known_and_its_epoch_is_given_up() -> None:
    subject = session()
    read(subject, stored(THEIRS))
    campaign = put(subject.propose(MINE._replace(epoch=Epoch(5)), 0))
    look = get(answered(subject, campaign, LeaseOutcome.CONFLICT).effects)
    renewed = stored(THEIRS._replace(renewed=2), "11")
    answer = answered(subject, look, LeaseOutcome.FOUND, renewed, now_ms=20)
    assert answer.settled == WriteOutcome(MINE._replace(epoch=Epoch(5)), applied=False)
    assert subject.given_up == 5
    assert not subject.holds(5)
    assert subject.unchanged_ms(20) == 0


def test_a_holder_changed_by_hand_is_not_taken_for_the_own_write() -> None:
    # `renewed` is still ours: kubectl edit changes one field and leaves the others.
    subject = session()
    read(subject, stored(MINE))
    renewal = put(subject.renew(0))
    unknown(subject, renewal, 10)
    second = repeated(subject, stored(MINE), 500)
    look = get(answered(subject, second, LeaseOutcome.CONFLICT, now_ms=500).effects)
    edited = stored(renewal.lease._replace(holder=B), "12")
    answer = answered(subject, look, LeaseOutcome.FOUND, edited, now_ms=510)
    assert answer.settled == WriteOutcome(MINE, applied=False, unanswered=True)
    assert not subject.holds(4)
    assert subject.deadline_ms(4) is None


def test_patience_begins_again_with_every_new_version_and_holder() -> None:
    subject = session()
    read(subject, stored(THEIRS), 100)
    assert subject.unchanged_ms(150) == 50
    read(subject, stored(THEIRS), 200)
    assert subject.unchanged_ms(250) == 150
    read(subject, stored(THEIRS._replace(renewed=2), "11"), 300)
    assert subject.unchanged_ms(300) == 0
    read(subject, stored(THEIRS._replace(renewed=2), "11", uid="other"), 400)
    assert subject.unchanged_ms(400) == 0


def test_reads_without_an_answer_change_nothing_that_is_known() -> None:
    subject = session()
    read(subject, stored(THEIRS), 100)
    unknown(subject, get(subject.read(1000)), 1500)
    assert subject.stored == stored(THEIRS)
    assert subject.unchanged_ms(1500) == 1400
    assert (subject.unknowns, subject.reason) == (1, "no answer")
    assert subject.due(1500)


def test_an_answer_that_comes_too_late_or_twice_is_dropped() -> None:
    subject = session()
    first = get(subject.read(0))
    unknown(subject, first, 500)
    second = get(subject.read(500))
    assert answered(subject, first, LeaseOutcome.FOUND, stored(THEIRS)) == Answer([])
    assert subject.stored is None
    answered(subject, second, LeaseOutcome.FOUND, stored(MINE), 600)
    assert answered(subject, second, LeaseOutcome.FOUND, stored(THEIRS)) == Answer([])
    assert subject.stored == stored(MINE)


def test_another_set_of_the_same_epoch_and_version_is_not_believed() -> None:
    # The group was founded twice; the first request created the lease after it had been deleted.
    # Its set has no living member, and no command was accepted that creates the lease again.
    subject = session()
    read(subject, stored(MINE))
    read(subject, stored(MINE._replace(in_sync=MINE.in_sync[:1]), "11", "v"), 10)
    assert subject.backwards
    assert subject.seen == (MINE.epoch, MINE.in_sync_version)
    read(subject, stored(MINE, "12"), 20)
    assert not subject.backwards
    later = MINE._replace(in_sync=MINE.in_sync[:1], in_sync_version=MINE.in_sync_version + 1)
    read(subject, stored(later, "13"), 30)
    assert not subject.backwards


def test_an_object_that_went_backwards_is_not_written_until_an_operator_says_so() -> None:
    subject = session(seen=(4, 8))
    read(subject, stored(MINE))
    assert subject.backwards
    assert not subject.can_write
    with pytest.raises(AssertionError):
        subject.renew(10)
    assert put(subject.propose(MINE._replace(epoch=Epoch(9)), 10, despite=True))
    later = session(seen=(4, 7))
    read(later, stored(MINE))
    assert not later.backwards
    read(later, stored(MINE._replace(epoch=Epoch(5), in_sync_version=1)), 10)
    assert later.seen == (5, 1)
    read(later, stored(MINE), 20)
    assert later.backwards
    assert later.seen == (5, 1)


def test_absence_is_known_only_from_an_answer() -> None:
    subject = session(seen=(4, 7))
    answered(subject, get(subject.read(0)), LeaseOutcome.ABSENT)
    assert (subject.absent, subject.stored) == (True, None)
    unknown(subject, get(subject.read(600)), 700)
    assert subject.absent


def test_a_deleted_object_ends_a_renewal_and_the_deadline() -> None:
    subject = session()
    read(subject, stored(MINE))
    answered(subject, put(subject.renew(0)), LeaseOutcome.APPLIED, stored(MINE, "11"), now_ms=10)
    answer = answered(subject, put(subject.renew(500)), LeaseOutcome.ABSENT, now_ms=510)
    assert answer.settled == WriteOutcome(MINE, applied=False)
    assert subject.absent
    assert subject.deadline_ms(4) is None


def test_a_creation_is_repeated_and_found_as_ones_own() -> None:
    subject = session()
    answered(subject, get(subject.read(0)), LeaseOutcome.ABSENT)
    (first,) = subject.create(MINE, 10)
    assert isinstance(first, LeaseCreate)
    subject.answered(LeaseAnswered(first.request, LeaseOutcome.UNKNOWN), 510)
    look = get(subject.tick(510))
    # The absence of the object proves nothing.
    assert answered(subject, look, LeaseOutcome.ABSENT, now_ms=510) == Answer([])
    assert subject.unsettled == MINE
    (second,) = subject.tick(510)
    assert isinstance(second, LeaseCreate)
    look = get(answered(subject, second, LeaseOutcome.CONFLICT, now_ms=520).effects)
    answer = answered(subject, look, LeaseOutcome.FOUND, stored(first.lease, "1"), now_ms=530)
    assert answer.settled == WriteOutcome(MINE, applied=True)
    assert subject.holds(4)
    assert subject.deadline_ms(4) == 10 + UNTIL


def test_a_creation_that_another_was_first_with_is_lost() -> None:
    subject = session()
    answered(subject, get(subject.read(0)), LeaseOutcome.ABSENT)
    (first,) = subject.create(MINE, 10)
    assert isinstance(first, LeaseCreate)
    look = get(answered(subject, first, LeaseOutcome.CONFLICT, now_ms=20).effects)
    answer = answered(subject, look, LeaseOutcome.FOUND, stored(THEIRS, "1"), now_ms=30)
    assert answer.settled == WriteOutcome(MINE, applied=False)
    assert subject.given_up == 4


def test_what_an_abandoned_write_does_later_is_seen_and_not_acted_on() -> None:
    subject = session()
    read(subject, stored(THEIRS))
    campaign = put(subject.propose(MINE._replace(epoch=Epoch(5)), 0))
    subject.abandon()
    assert subject.unsettled is None
    assert not subject.free  # still one request at a time
    late = stored(campaign.lease, "11")
    assert answered(subject, campaign, LeaseOutcome.APPLIED, late, now_ms=400) == Answer([])
    assert subject.stored == late
    assert subject.given_up == 5


def test_reads_for_commands_put_off_no_renewal() -> None:
    # An operator repeats a command that changes nothing, more often than the lease is renewed.
    subject = session()
    read(subject, stored(MINE))
    renewal = put(subject.renew(0))
    answered(subject, renewal, LeaseOutcome.APPLIED, stored(renewal.lease, "11"))
    for now_ms in range(0, 2 * LOCAL.renew_ms, LOCAL.renew_ms // 5):
        if subject.due(now_ms):
            break
        read(subject, stored(renewal.lease, "11"), now_ms)
    else:
        pytest.fail("the renewal is never due")


def test_an_error_that_comes_at_once_is_not_asked_again_at_once() -> None:
    subject = session()
    read(subject, stored(MINE))
    unknown(subject, put(subject.renew(1000)), 1001)
    assert subject.tick(1001) == []
    assert subject.tick(999 + LOCAL.renew_ms // 4) == []
    assert get(subject.tick(1000 + LOCAL.renew_ms // 4))


def test_conflicts_without_end_are_answered_slower() -> None:
    subject = session()
    read(subject, stored(MINE))
    renewal, at_once = put(subject.renew(0)), 0
    for _ in range(3 * HURRIED_MAX):
        look = get(answered(subject, renewal, LeaseOutcome.CONFLICT, now_ms=10).effects)
        answered(subject, look, LeaseOutcome.FOUND, stored(MINE), now_ms=10)
        effects = subject.tick(10)
        if not effects:
            break
        at_once += 1
        renewal = put(effects)
    assert at_once == HURRIED_MAX


def test_what_is_kept_of_attempts_is_bounded_and_the_oldest_count_from_the_first() -> None:
    subject = session()
    read(subject, stored(MINE))
    attempts = [put(subject.renew(0))]
    now_ms = 0
    for _ in range(3 * ATTEMPTS_KEPT):
        now_ms += LOCAL.renew_ms
        unknown(subject, attempts[-1], now_ms)
        attempts.append(repeated(subject, stored(MINE), now_ms))
    look = get(answered(subject, attempts[-1], LeaseOutcome.CONFLICT, now_ms=now_ms).effects)
    answer = answered(
        subject, look, LeaseOutcome.FOUND, stored(attempts[5].lease, "11"), now_ms=now_ms
    )
    assert answer.settled == WriteOutcome(MINE, applied=True)
    assert subject.deadline_ms(4) == UNTIL


class _Sent(NamedTuple):
    effect: LeasePut
    subject: LeaseSession


@for_each("seed", range(100))
def test_two_sessions_never_hold_one_epoch_however_late_writes_are_applied(seed: int) -> None:
    """Every write may be lost, applied late, or applied without an answer; conflicts may be
    invented. Only one process gets `applied` for an epoch, the reported set is the object's, and at
    the end every write settles."""
    chance = random.Random(seed)
    found = stored(MINE._replace(holder=None, epoch=Epoch(1)), "0")
    under_way: list[_Sent] = []
    holders: dict[int, Holder] = {}
    subjects = [LeaseSession(own, LOCAL, (0, 0), random.Random(seed).random) for own in (A, B)]

    def apply(effect: LeasePut) -> bool:
        nonlocal found
        if effect.base.version != found.version:
            return False
        found = Stored(effect.lease, str(int(found.version) + 1), found.uid)
        return True

    def carry_out(subject: LeaseSession, effect: Effect, now_ms: int) -> None:
        assert isinstance(effect, LeaseGet | LeasePut)
        calm = now_ms > 60_000
        outcome, found_now = LeaseOutcome.FOUND, found
        if isinstance(effect, LeasePut):
            fate = "answered" if calm else chance.choice(["answered", "lost", "late", "refused"])
            if fate == "answered":
                outcome = LeaseOutcome.APPLIED if apply(effect) else LeaseOutcome.CONFLICT
                found_now = found
            elif fate == "refused":
                outcome = LeaseOutcome.CONFLICT
            else:
                outcome = LeaseOutcome.UNKNOWN
                under_way.extend([_Sent(effect, subject)] * (fate == "late"))
        answer = subject.answered(LeaseAnswered(effect.request, outcome, found_now), now_ms)
        if answer.settled is not None and answer.settled.applied:
            lease = answer.settled.wanted
            assert lease.holder is not None
            assert subject.stored is not None
            assert (subject.stored.lease.holder, subject.stored.lease.epoch) == lease[:2]
            assert holders.setdefault(lease.epoch, lease.holder) == lease.holder
        for further in answer.effects:
            carry_out(subject, further, now_ms)

    for now_ms in range(0, 90_000, 100):
        while under_way and (chance.random() < 0.2 or now_ms > 60_000):
            apply(under_way.pop(chance.randrange(len(under_way))).effect)
        for subject in subjects:
            effects = subject.tick(now_ms)
            if subject.can_write and subject.stored and chance.random() < 0.3 and not effects:
                lease = subject.stored.lease
                epoch = Epoch(lease.epoch + (lease.holder != subject.own))
                effects = subject.propose(lease._replace(holder=subject.own, epoch=epoch), now_ms)
            elif subject.due(now_ms):
                effects = subject.read(now_ms)
            for effect in effects:
                carry_out(subject, effect, now_ms)
    assert len(holders) > 1
    for subject in subjects:
        assert subject.stored is not None
        for effect in subject.tick(100_000):
            carry_out(subject, effect, 100_000)
        assert subject.unsettled is None


class _Request(NamedTuple):
    """A request under way: processed, and answered, later than it was sent."""

    effect: LeaseGet | LeasePut
    looked_at_ms: int
    answered_at_ms: int
    lost: bool


def test_whoever_waits_its_patience_takes_the_lease_after_the_holder_stopped() -> None:
    assert sum(_takeovers(seed) for seed in range(30)) > 60


def _takeovers(seed: int) -> int:
    """One clock, and requests that take any time and lose their answers: when a write that names
    another holder is applied, the deadline that the old holder knows of is over by the margin."""
    chance = random.Random(seed)
    found = stored(MINE._replace(holder=None, epoch=Epoch(1)), "0")
    subjects = [LeaseSession(own, LOCAL, (0, 0), chance.random) for own in (A, B)]
    under_way: dict[LeaseSession, _Request] = {}
    outcomes: dict[LeaseSession, LeaseAnswered] = {}
    late: list[_Request] = []
    # For some seconds at a time one of them gets no answer from the lease.
    deaf = {subject: [chance.random() < 0.5 for _ in range(20)] for subject in subjects}
    taken = 0

    def look(request: _Request, now_ms: int) -> LeaseAnswered:
        nonlocal found, taken
        effect = request.effect
        if isinstance(effect, LeaseGet):
            return LeaseAnswered(effect.request, LeaseOutcome.FOUND, found)
        if effect.base.version != found.version:
            return LeaseAnswered(effect.request, LeaseOutcome.CONFLICT)
        before = found.lease
        found = Stored(effect.lease, str(int(found.version) + 1), found.uid)
        if before.holder not in (None, effect.lease.holder):
            taken += 1
            for other in subjects:
                deadline_ms = other.deadline_ms(before.epoch)
                assert deadline_ms is None or deadline_ms + LOCAL.margin_ms <= now_ms
        return LeaseAnswered(effect.request, LeaseOutcome.APPLIED, found)

    def send(subject: LeaseSession, effects: list[Effect], now_ms: int) -> None:
        for effect in effects:
            assert isinstance(effect, LeaseGet | LeasePut)
            looked_at_ms = now_ms + chance.choice([0, 20, 100, 400, 1500])
            answered_at_ms = looked_at_ms + chance.choice([0, 20, 200])
            lost = deaf[subject][now_ms // 3000] or chance.random() < 0.2
            if lost or answered_at_ms - now_ms > LOCAL.request_timeout_ms:
                lost, answered_at_ms = True, now_ms + LOCAL.request_timeout_ms
            under_way[subject] = _Request(effect, looked_at_ms, answered_at_ms, lost)

    def wanted(subject: LeaseSession, now_ms: int) -> list[Effect]:
        now_stored, unchanged_ms = subject.stored, subject.unchanged_ms(now_ms)
        if subject.can_write and now_stored is not None and unchanged_ms is not None:
            if now_stored.lease.holder == subject.own:
                return subject.renew(now_ms) if subject.due(now_ms) else []
            if unchanged_ms >= LOCAL.lease_ms:
                epoch = Epoch(max(now_stored.lease.epoch, subject.given_up) + 1)
                lease = now_stored.lease._replace(holder=subject.own, epoch=epoch)
                return subject.propose(lease, now_ms)
        return subject.read(now_ms) if subject.due(now_ms) else []

    for now_ms in range(0, 60_000, 20):
        for request in [request for request in late if request.looked_at_ms <= now_ms]:
            late.remove(request)
            look(request, now_ms)
        for subject in subjects:
            sent = under_way.get(subject)
            if sent is None:
                send(subject, subject.tick(now_ms) or wanted(subject, now_ms), now_ms)
                continue
            if not sent.lost and subject not in outcomes and sent.looked_at_ms <= now_ms:
                outcomes[subject] = look(sent, now_ms)
            if now_ms >= sent.answered_at_ms:
                del under_way[subject]
                if sent.lost and chance.random() < 0.7:
                    late.append(sent)
                unheard = LeaseAnswered(sent.effect.request, LeaseOutcome.UNKNOWN)
                answer = subject.answered(outcomes.pop(subject, unheard), now_ms)
                send(subject, answer.effects, now_ms)
    return taken
