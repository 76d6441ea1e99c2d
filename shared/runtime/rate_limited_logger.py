"""Rate-limited logging: at most one line per key and minute.

It is for events that others can cause as fast as they like, or that a loop meets in every
iteration: without a limit the log would fill the disk. Changes of state need no limit; the code
that detects the change logs it. Not thread-safe.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

log = logging.getLogger(__name__)

INTERVAL_S: Final = 60.0
KEYS_MAX: Final = 256
"""Keys remembered; all further keys share one line per interval."""
OTHERS: Final = "others"


class RateLimitedLogger:
    """Limits lines per key, and counts the events between two lines."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._keys: OrderedDict[str, tuple[float, int]] = OrderedDict()
        self.count = 0
        """Number of all events, whether a line was written or not."""

    @property
    def now(self) -> float:
        """Seconds of the clock that limits the lines."""
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
        """Log a line about key unless one was written less than a minute ago; return whether it was
        written.

        key: what is limited, for example a peer. error: logged with its traceback. The line reports
        in ``held_back`` how many events since the last line were not logged.
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
        """Log an internal error with its traceback, at most once a minute per raising line."""
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
        """Remove keys without a line in the last minute; return whether another key fits."""
        while self._keys:
            oldest, (said_at, _) = next(iter(self._keys.items()))
            if now - said_at < INTERVAL_S:
                break
            del self._keys[oldest]
        return len(self._keys) < KEYS_MAX
