"""Encodes the answer to a fetch.

The raw form is a big-endian 32-bit size, a msgpack map of that size, and then the stored records
of each entry of ``queues``, in order, ``size`` bytes each. The records are sent straight from the
log's mapping (``zero_copy``). The other form decodes every message into a map, for people and curl.
Step before: ``fetch``. Step after: the client.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Final, cast

import msgpack
from aiohttp import web

from services.broker.api.encodings import RECORDS, Items
from services.broker.api.zero_copy import Stretches
from services.broker.groups.fetch import Fetched, Piece
from services.broker.read.message_map import message_map
from services.broker.read.unpacking import pulled_messages
from tidemark.errors import CorruptRecord
from tidemark.formats import record

MAP_SIZE: Final = struct.Struct(">I")
"""Size of the map in bytes; the prefix of the raw form."""


def raw_answer(fetched: Fetched) -> web.Response:
    """Return the stored records after a map that says which bytes belong to which queue."""
    described = [
        {**_described(piece), "size": piece.result.bytes_total} for piece in fetched.pieces
    ]
    head = cast(bytes, msgpack.packb({**_said(fetched), "queues": described}))
    stretches = [memoryview(MAP_SIZE.pack(len(head)) + head)]
    size = len(stretches[0])
    for piece in fetched.pieces:
        stretches += piece.result.stretches
        size += piece.result.bytes_total
    return web.Response(body=Stretches(stretches, size), headers={"Content-Type": RECORDS})


def answer_map(
    fetched: Fetched, checks_at: Callable[[int], record.Checks], *, json_body: bool
) -> dict[str, object]:
    """Return the answer as maps, after checking the CRCs.

    Of each queue it holds the messages before the first damaged record; the member's next fetch
    goes on at that record. Messages are decoded into maps only when the answer is encoded.
    Raises DamagedFile, and CorruptRecord if nothing is left.
    """
    queues: list[dict[str, object]] = []
    damage: CorruptRecord | None = None
    message_count = 0
    for piece in fetched.pieces:
        described, sound = _described(piece), list[tuple[record.Record, int]]()
        for number, found, code in pulled_messages(piece.result, checks_at, piece.tags):
            if isinstance(found, CorruptRecord):
                damage = found
                fetched.stop_at(piece, int(number))
                described["next_offset"] = int(number)
                break
            sound.append((found, code))
        message_count += len(sound)
        queues.append({**described, "messages": _maps(sound, json_body=json_body)})
    if damage is not None and not message_count:
        raise damage
    return {**_said(fetched), "queues": queues}


def _maps(sound: Sequence[tuple[record.Record, int]], *, json_body: bool) -> Items:
    values = (message_map(found, code=code, json_body=json_body) for found, code in sound)
    return Items(len(sound), values)


def _said(fetched: Fetched) -> dict[str, object]:
    said: dict[str, object] = {"generation": fetched.generation}
    if fetched.poll_after_ms is not None:
        said["poll_after_ms"] = fetched.poll_after_ms
    return said


def _described(piece: Piece) -> dict[str, object]:
    topic, number = piece.queue
    return {
        "topic": topic,
        "queue": number,
        "status": piece.result.status.value,
        "from_offset": piece.from_offset,
        "next_offset": piece.next_offset,
        "min_offset": piece.result.min_offset,
        "max_offset": piece.result.max_offset,
    }
