"""One log line per key and minute, however often what is worth one happens.

For what others can cause as fast as they like, or what a loop meets at every turn: without a bound
it would fill the disk with our log. What changes state is said by whoever notices the change, and
needs no pace. On one thread.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

log = logging.getLogger(__name__)

INTERVAL_S: Final = 60.0
KEYS_MAX: Final = 256
"""Keys remembered; lines about others are held to one per interval together."""
OTHERS: Final = "others"


class PacedLog:
    """Counts what happens between two lines about a key."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._keys: OrderedDict[str, tuple[float, int]] = OrderedDict()
        self.count = 0
        """Of all that was told here, whether a line was written or not."""

    @property
    def now(self) -> float:
        """Seconds of the clock that paces the lines."""
        return self._monotonic()

    def say(
        self,
        key: str,
        event: str,
        sentence: str,
        *,
        level: int = logging.WARNING,
        error: BaseException | None = None,
        **facts: object,
    ) -> bool:
        """Write a line about key, unless one was written less than a minute ago; whether it was.

        key: what is paced, for example a peer. error: written with its traceback. The line says how
        often it happened since the last one, as ``held_back``.
        """
        self.count += 1
        now = self._monotonic()
        key = key if key in self._keys or self._has_room(now) else OTHERS
        said_at, held_back = self._keys.get(key, (now - INTERVAL_S, 0))
        if now - said_at < INTERVAL_S:
            self._keys[key] = (said_at, held_back + 1)
            return False
        self._keys[key] = (now, 0)
        self._keys.move_to_end(key)
        extra = {"event": event, "held_back": held_back, **facts}
        log.log(level, sentence, exc_info=error, extra=extra)
        return True

    def defect(self, error: BaseException, sentence: str, **facts: object) -> bool:
        """Write that something of ours failed, with its traceback, once a minute for each place."""
        frame, line = error.__traceback__, 0
        while frame is not None:
            line, frame = frame.tb_lineno, frame.tb_next
        return self.say(
            f"{type(error).__name__} {line}",
            "internal-error",
            sentence,
            level=logging.ERROR,
            error=error,
            code="internal",
            **facts,
        )

    def _has_room(self, now: float) -> bool:
        """Forget keys of which nothing was said for a minute; whether another one fits."""
        while self._keys:
            oldest, (said_at, _) = next(iter(self._keys.items()))
            if now - said_at < INTERVAL_S:
                break
            del self._keys[oldest]
        return len(self._keys) < KEYS_MAX
