"""Signs and checks registrations: an HMAC over time, method, path and body. Pure.

The secret is the one of the cluster's broker groups. Without it anybody who reaches the port of a
name service could send clients to brokers of their own. The time bounds how long a recorded
registration can be repeated; within that time ``epoch`` and ``counter`` make a repetition harmless.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from typing import Final

from tidemark.errors import BadSignature, ClockSkew

HEADER: Final = "Tidemark-Signature"
SKEW_MAX_MS: Final = 300_000
"""Largest difference of two clocks [ms]: the usual bound of Kerberos, far above what NTP allows."""
_FORM: Final = re.compile(r"([0-9]{1,16}):([0-9a-f]{64})")


def sign(secret: bytes, now_ms: int, method: str, path: str, body: bytes) -> str:
    """Return the header of a request. now_ms: wall clock of the sender."""
    return f"{now_ms}:{_mac(secret, now_ms, method, path, body)}"


def check(
    secret: bytes, header: str | None, now_ms: int, method: str, path: str, body: bytes
) -> None:
    """Check the header of a request; now_ms: wall clock of the receiver.

    Raises BadSignature if it is missing or made with another secret, ClockSkew if it is too old or
    from the future. The signature is checked first: the time of a stranger means nothing.
    """
    matched = _FORM.fullmatch(header or "")
    if matched is None:
        what = "has no" if header is None else "has a malformed"
        raise BadSignature(
            f"the registration {what} header {HEADER}, and this name service has a secret. "
            "Nothing was changed.",
            "Give the broker the cluster's secret: names.secret_file, or cluster.secret_file.",
        )
    signed_ms = int(matched[1])
    if not hmac.compare_digest(matched[2], _mac(secret, signed_ms, method, path, body)):
        raise BadSignature(
            "the registration is signed with another secret than that of this name service. "
            "Nothing was changed.",
            "Use one secret for all brokers and name services of the cluster.",
        )
    difference_ms = signed_ms - now_ms
    if abs(difference_ms) > SKEW_MAX_MS:
        side = "ahead of" if difference_ms > 0 else "behind"
        raise ClockSkew(
            f"the broker's clock is {abs(difference_ms) / 1000:.0f} s {side} that of this name "
            f"service; {SKEW_MAX_MS // 1000} s are allowed. Nothing was changed.",
            "Repair the time service of the machine whose clock is wrong.",
            difference_ms=difference_ms,
            limit_ms=SKEW_MAX_MS,
        )


def _mac(secret: bytes, now_ms: int, method: str, path: str, body: bytes) -> str:
    made = hmac.new(secret, f"{now_ms}{method}{path}".encode(), hashlib.sha256)
    made.update(body)
    return made.hexdigest()
