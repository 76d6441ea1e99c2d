"""Decides when a broker registers with one name service, and with how much. Pure.

It registers at once when its role or epoch changes, soon after a topic has changed, and otherwise
every RENEW_S. A master registers with all its topics first and by difference from then on. A name
service that does not answer, or refuses, is tried again after a growing pause.
Step before: ``api.own_route`` knows role and topics. Step after: ``registrar`` sends.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from shared.cluster.routes import RENEW_S, Role
from tidemark.errors import StaleRegistration, UnknownBase

GATHER_S: Final = 0.05
"""Pause after a registration in which further changes of topics are gathered."""
RETRY_MIN_S: Final = 1.0
RETRY_MAX_S: Final = 30.0


class Standing(NamedTuple):
    """What a node has to register."""

    role: Role
    epoch: int
    counter: int


class RegistrationPlan:
    """The registrations with one name service. Times are those of the monotonic clock [s]."""

    def __init__(self) -> None:
        self._accepted: Standing | None = None
        """What the name service has; None: nothing, or it is not known."""
        self._sent_s = float("-inf")
        self._failures = 0
        self._hurries = False
        """Whether the last registration was refused, and the next one was due at once."""

    @property
    def is_registered(self) -> bool:
        """Whether the last registration was accepted."""
        return self._accepted is not None and not self._failures

    def due_s(self, now: Standing) -> float:
        """Return the time at which the next registration is due."""
        if self._failures:
            pause_s = RETRY_MIN_S * 2.0 ** min(self._failures - 1, 10)
            return self._sent_s + min(pause_s, RETRY_MAX_S)
        accepted = self._accepted
        if accepted is None or (accepted.role, accepted.epoch) != (now.role, now.epoch):
            return float("-inf")
        is_behind = now.role == "master" and accepted.counter != now.counter
        return self._sent_s + (GATHER_S if is_behind else RENEW_S)

    def base(self, now: Standing) -> int | None:
        """Return the counter to which a master registers the difference; None: with all topics."""
        accepted = self._accepted
        if accepted is None or (accepted.role, accepted.epoch) != ("master", now.epoch):
            return None
        return accepted.counter

    def accept(self, sent: Standing, now_s: float) -> None:
        """Note that the name service has accepted a registration that was sent at now_s."""
        self._accepted, self._sent_s, self._failures, self._hurries = sent, now_s, 0, False

    def refuse(self, code: str, now_s: float) -> None:
        """Note that a registration sent at now_s was refused, or not answered.

        code: of the error, or any other text if there was no answer. The next registration has all
        topics. It is due at once if only base or counter were wrong, but not twice in a row: the
        registration of an older epoch stays wrong.
        """
        self._hurries = code in (UnknownBase.code, StaleRegistration.code) and not self._hurries
        self._accepted, self._sent_s = None, now_s
        self._failures = 0 if self._hurries else self._failures + 1
