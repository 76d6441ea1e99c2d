"""Encodes a lease as named texts, for annotations and files (docs/replication.md). Pure.

People read and edit these texts by hand. An invalid text is refused by name, and no node acts on
it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, Final

import msgspec

from services.ha.lease.value import Holder, Lease, Member, Membership
from shared.cluster.nodes import NODES_MAX, Node
from tidemark.offsets import Epoch

I64_MAX: Final = (1 << 63) - 1
DIGITS_MAX: Final = 19
"""Digits of I64_MAX: longer texts are not converted."""

VERSION_SIZE: Final = 120
"""Bytes for what a store adds: the version before, and a token."""

_Text = Annotated[str, msgspec.Meta(min_length=1, max_length=1024)]
TEXT_NAMES: Final = frozenset(
    {
        *("epoch", "isr", "isrVersion", "minISR", "replicas", "renewed"),
        *("handoverTo", "masterAddr", "paused", "members"),
    }
)
"""Names that `texts_of` may return."""


class UnreadableLease(ValueError):
    """The object exists and is not a valid lease."""


class _Node(msgspec.Struct):
    """A node of the group as it is written; unknown fields of a later version are ignored."""

    name: _Text
    host: _Text
    port: Annotated[int, msgspec.Meta(ge=1, le=65_535)]
    api: _Text
    admin: _Text


class _Members(msgspec.Struct):
    """The nodes of the group as they are written."""

    version: Annotated[int, msgspec.Meta(ge=1, le=I64_MAX)]
    nodes: Annotated[list[_Node], msgspec.Meta(min_length=1, max_length=NODES_MAX)]


def texts_of(lease: Lease) -> dict[str, str]:
    """Return every field except the holder; a flag that is off has no text."""
    texts = {
        "epoch": str(lease.epoch),
        "isr": _json(sorted(lease.in_sync)),
        "isrVersion": str(lease.in_sync_version),
        "minISR": str(lease.min_in_sync),
        "replicas": _json(lease.replicas),
        "renewed": str(lease.renewed),
    }
    if lease.handover_to is not None:
        texts["handoverTo"] = lease.handover_to
    if lease.master_address:
        texts["masterAddr"] = lease.master_address
    if lease.paused:
        texts["paused"] = "true"
    if lease.members is not None:
        nodes = [node._asdict() for node in lease.members.nodes]
        texts["members"] = _json({"version": lease.members.version, "nodes": nodes})
    return texts


def lease_of(holder: str, texts: Mapping[str, str]) -> Lease:
    """Return the lease with that holder. Raises UnreadableLease, naming the text."""
    paused = texts.get("paused", "false")
    if paused not in ("true", "false"):
        raise UnreadableLease(f"paused is {paused!r}, not true or false")
    return Lease(
        holder=holder_of(holder),
        epoch=Epoch(_number("epoch", texts)),
        in_sync=_members(_found("isr", texts)),
        in_sync_version=_number("isrVersion", texts),
        min_in_sync=_number("minISR", texts),
        replicas=_names(_found("replicas", texts)),
        renewed=_number("renewed", texts),
        handover_to=texts.get("handoverTo") or None,
        master_address=texts.get("masterAddr", ""),
        paused=paused == "true",
        members=_membership(texts["members"]) if "members" in texts else None,
    )


def is_readable(lease: Lease) -> bool:
    """Return whether the lease is read back from its texts as it was written."""
    try:
        return lease_of(holder_text(lease.holder), texts_of(lease)) == lease
    except UnreadableLease:
        return False


def size_with_all(lease: Lease) -> int:
    """Return the bytes of the lease as a JSON object, once all its nodes are in the set.

    With the longest values of the other fields, so that no later write of it is longer.
    """
    long = max(lease.replicas, key=len)
    members = tuple(Member(name, "0" * 32) for name in lease.replicas)
    nodes = () if lease.members is None else lease.members.nodes
    address = max([lease.master_address, *(node.api for node in nodes)], key=len)
    full = lease._replace(
        in_sync=members,
        epoch=Epoch(I64_MAX),
        handover_to=long,
        master_address=address,
        paused=True,
    )
    holder = holder_text(Holder(long, "0" * 32, "0" * 16))
    return len(_json({"holder": holder, **texts_of(full)})) + VERSION_SIZE


def fields_of(text: str | bytes) -> dict[str, Any]:
    """Return the fields of a lease that is stored as a JSON object. Raises UnreadableLease."""
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UnreadableLease("its content is not JSON") from error
    if not isinstance(fields, dict):
        raise UnreadableLease("its content is not a JSON object")
    return fields


def holder_text(holder: Holder | None) -> str:
    """Return ``node/incarnation/process``; empty: released."""
    return "" if holder is None else "/".join(holder)


def holder_of(text: str) -> Holder | None:
    """Return the holder that `holder_text` wrote. Raises UnreadableLease."""
    if not text:
        return None
    parts = text.split("/")
    if len(parts) != 3 or not all(parts):
        raise UnreadableLease(f"holder is {text!r}, not node/incarnation/process")
    return Holder(*parts)


def _members(text: str) -> tuple[Member, ...]:
    """Return the sorted members; two incarnations of one node would count as two copies."""
    pairs = _array("isr", text)
    if not all(isinstance(pair, list) and len(pair) == 2 and _are_names(pair) for pair in pairs):
        raise UnreadableLease(f"isr is {text!r}, not an array of [node, incarnation]")
    members = tuple(sorted(Member(*pair) for pair in pairs))
    if len({member.node for member in members}) != len(members):
        raise UnreadableLease(f"isr is {text!r}: a node is in it twice")
    return members


def _membership(text: str) -> Membership:
    """Return the nodes. Raises UnreadableLease: without them a removed node could come back."""
    try:
        found = msgspec.json.decode(text, type=_Members)
    except msgspec.DecodeError as error:
        raise UnreadableLease(f"members is {text!r}: {error}") from error
    nodes = tuple(
        Node(each.name, each.host, each.port, each.api, each.admin) for each in found.nodes
    )
    if len({node.name for node in nodes}) != len(nodes):
        raise UnreadableLease(f"members is {text!r}: a node is in it twice")
    return Membership(found.version, nodes)


def _names(text: str) -> tuple[str, ...]:
    names = _array("replicas", text)
    if not _are_names(names):
        raise UnreadableLease(f"replicas is {text!r}, not an array of names")
    return tuple(names)


def _are_names(values: list[Any]) -> bool:
    return all(isinstance(value, str) and value for value in values)


def _array(name: str, text: str) -> list[Any]:
    try:
        values = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UnreadableLease(f"{name} is not JSON: {error}") from error
    if not isinstance(values, list):
        raise UnreadableLease(f"{name} is {text!r}, not an array")
    return values


def _number(name: str, texts: Mapping[str, str]) -> int:
    text = _found(name, texts)
    if not (text.isascii() and text.isdigit()) or len(text) > DIGITS_MAX or int(text) > I64_MAX:
        raise UnreadableLease(f"{name} is {text!r}, not a number from 0 to {I64_MAX}")
    return int(text)


def _found(name: str, texts: Mapping[str, str]) -> str:
    text = texts.get(name)
    if not isinstance(text, str):
        raise UnreadableLease(f"{name} is missing")
    return text


def _json(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))
