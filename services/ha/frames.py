"""Frames of the replication protocol: bytes and values (docs/replication.md, frames). Pure.

u32 length of what follows (at most 8 MiB) · u8 type · u8 flags · u16 reserved · i64 epoch · payload
· u32 CRC-32 over type to payload. All integers big-endian. Every frame carries its sender's epoch.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple


class FrameType(IntEnum):
    """What a frame says."""

    HELLO = 1
    HELLO_OK = 2
    RESYNC_REQUIRED = 3
    APPEND = 4
    ACK = 5
    PROMISE = 6
    PROMISE_OK = 7
    STATUS = 8
    STATUS_OK = 9
    FENCED = 10


class Frame(NamedTuple):
    """One frame, its payload not yet decoded."""

    type: FrameType
    epoch: int
    """The sender's; of APPEND the master's, its data epoch is in the payload."""
    payload: bytes | memoryview
    flags: int = 0
