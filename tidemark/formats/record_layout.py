"""Layout of a commit log record (docs/formats.md, sections 2.1 to 2.3). Pure.

Constants and structs shared by encoding, decoding, checking and scanning; no rules. Hosts have 8 or
20 bytes, according to two bits of SYSFLAG, and the topic's length 1 or 2, according to the magic.
Therefore no field after the born host has a fixed position.
"""

from __future__ import annotations

import struct
from typing import Final

from tidemark.formats import properties

Buffer = bytes | bytearray | memoryview

MAGIC_V1: Final = -626843481
MAGIC_V2: Final = -626843477
MAGIC_BLANK: Final = -875286124
BLANK_SIZE: Final = 8
CRC_PROPERTY_SIZE: Final = properties.CRC_SLOT_SIZE
RECORD_SIZE_MIN: Final = 91
"""V1 with IPv4 hosts and without body, topic and properties."""
TOPIC_SIZE_V1_MAX: Final = 127
"""V1 stores a topic's length in a signed byte."""
TOPIC_SIZE_MAX: Final = 255

TRANSACTION_MASK: Final = 0xC
TRANSACTION_PREPARED: Final = 0x4
TRANSACTION_COMMIT: Final = 0x8
TRANSACTION_ROLLBACK: Final = 0xC
BORN_HOST_V6: Final = 0x10
STORE_HOST_V6: Final = 0x20

HEAD: Final = struct.Struct(">ii")
"""Size and magic."""
INT: Final = struct.Struct(">i")
LONG: Final = struct.Struct(">q")
BODY_CRC_AT: Final = 8
PHYSICAL_OFFSET_AT: Final = 28
SYS_FLAG_AT: Final = 36
SHAPES: Final = ((8, 8), (20, 8), (8, 20), (20, 20))
"""Sizes of born and store host, indexed by the two V6 bits: ``sys_flag >> 4 & 3``."""
PREFIXES: Final = tuple(struct.Struct(f">iiiiiqqiq{born}sq{store}siqi") for born, store in SHAPES)
"""Everything before the body, indexed as SHAPES."""
NO_HOSTS_SIZE: Final = 56 + 16
"""Size of a prefix without its two hosts."""
