"""Posts all new notices to a URL as one JSON document. Unsent ones are sent later.

Step before: ``notices`` chose. Step after: the receiver, which drops ids that it has seen.
"""

from __future__ import annotations

import logging
from collections import deque
from typing import Final

import aiohttp

from analytics.export.notices import Notice

log = logging.getLogger(__name__)

WAITING_MAX: Final = 1_000
"""Notices kept while the URL does not answer; the oldest are dropped first."""
AT_ONCE: Final = 100
TIMEOUT_S: Final = 10.0


class Webhook:
    """Posts ``{"notices": [...]}``; the receiver accepts them with any 2xx status."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._waiting: deque[Notice] = deque(maxlen=WAITING_MAX)
        self._is_heard = True

    @property
    def waiting(self) -> int:
        """Number of notices that the receiver has not accepted."""
        return len(self._waiting)

    async def post(self, notices: list[Notice]) -> None:
        """Post these and all waiting notices, oldest first; failed ones wait for the next call."""
        self._waiting.extend(notices)
        if not self._waiting:
            return
        timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
        try:
            async with aiohttp.ClientSession(timeout=timeout) as session:
                while self._waiting:
                    batch = list(self._waiting)[:AT_ONCE]
                    body = {"notices": [notice._asdict() for notice in batch]}
                    async with session.post(self._url, json=body) as answer:
                        answer.raise_for_status()
                    for _ in batch:
                        self._waiting.popleft()
        except (aiohttp.ClientError, TimeoutError) as error:
            if self._is_heard:
                log.warning("the webhook does not take notices: %s", error or type(error).__name__)
            self._is_heard = False
            return
        if not self._is_heard:
            log.info("the webhook takes notices again")
        self._is_heard = True
