"""The lease as one key of etcd, written by compare-and-set.

    <etcd_prefix><cluster>-<group>  ->  {"holder": …, "epoch": …, "isr": …, …}

- A read is linearizable, which is etcd's default: the member that answers asks the leader first.
- A write is a transaction that compares the key's revision *and* its value with what was read.
  Revisions alone would not do: 1. etcd is restored from a backup. 2. Its revisions are counted
  again from there. 3. A late write names a revision that now belongs to another value. No two
  writes have the same value, because each has its own ``renewed``.
- No lease of etcd's own, which ends by a timer, is attached to the key. If the key ended with its
  holder, epoch and in-sync set would end with it: the successor could not know who may lead, and
  the rules for a deleted lease would apply (docs/decisions/0057-a-lease-on-etcd.md).
- An answer that does not clearly mean applied, refused or absent is *unknown*.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections import OrderedDict
from typing import Any, Final

from services.ha.core.events import LeaseOutcome
from services.ha.lease.etcd_gateway import EtcdFailed, EtcdGateway
from services.ha.lease.interface import Outcome
from services.ha.lease.texts import UnreadableLease, fields_of, holder_text, lease_of, texts_of
from services.ha.lease.value import Lease, Stored

KEPT: Final = 4
"""Values as they were read, by version: a write needs the one that it replaces."""
DIGEST_SIZE: Final = 8


class EtcdLease:
    """``LeaseStore`` over an etcd cluster."""

    def __init__(self, gateway: EtcdGateway, key: str) -> None:
        """gateway: closed with this store."""
        self._gateway = gateway
        self._key = _base64(key.encode())
        self._read: OrderedDict[str, bytes] = OrderedDict()

    async def get(self) -> Outcome:
        """Read the key, after all writes that any member has answered."""
        try:
            answer = await self._gateway.call("kv/range", {"key": self._key})
            found = answer.get("kvs")
            if not found:
                return Outcome(LeaseOutcome.ABSENT)
            return Outcome(LeaseOutcome.FOUND, self._taken(found[0]))
        except (EtcdFailed, UnreadableLease) as error:
            return Outcome(LeaseOutcome.UNKNOWN, reason=str(error))

    async def put(self, lease: Lease, base: Stored) -> Outcome:
        """Replace the value if key and value are still those of base."""
        value = self._read.get(base.version)
        if value is None:
            # It was read too long ago: the caller reads again, as after a write of another process.
            return Outcome(LeaseOutcome.CONFLICT)
        revision, _, _ = base.version.partition("-")
        unchanged = [
            {"key": self._key, "target": "MOD", "mod_revision": revision},
            {"key": self._key, "target": "VALUE", "value": _base64(value)},
        ]
        return await self._write(lease, unchanged, base.uid)

    async def create(self, lease: Lease) -> Outcome:
        """Create the key, if there is none."""
        absent = [{"key": self._key, "target": "CREATE", "create_revision": "0"}]
        return await self._write(lease, absent, "")

    async def announce(self, role: str) -> str:
        """Do nothing: no other system reads the key."""
        return ""

    async def close(self) -> None:
        """Close the connections."""
        await self._gateway.close()

    async def _write(self, lease: Lease, compare: list[dict[str, str]], uid: str) -> Outcome:
        """Put the lease if the comparisons hold. uid: of the key; empty: that of the write."""
        fields = {"holder": holder_text(lease.holder), **texts_of(lease)}
        value = json.dumps(fields, separators=(",", ":")).encode()
        transaction = {
            "compare": compare,
            "success": [{"request_put": {"key": self._key, "value": _base64(value)}}],
            "failure": [{"request_range": {"key": self._key, "keys_only": True}}],
        }
        try:
            answer = await self._gateway.call("kv/txn", transaction)
        except EtcdFailed as error:
            return Outcome(LeaseOutcome.UNKNOWN, reason=str(error))
        if not answer.get("succeeded"):
            is_there = any(each["response_range"].get("kvs") for each in answer["responses"])
            return Outcome(LeaseOutcome.CONFLICT if is_there else LeaseOutcome.ABSENT)
        revision = answer["header"]["revision"]
        version = self._keep(revision, value)
        return Outcome(LeaseOutcome.APPLIED, Stored(lease, version, uid or revision))

    def _taken(self, found: dict[str, Any]) -> Stored:
        """Return the lease of a key, and keep its value for the next write. Raises
        UnreadableLease."""
        value = base64.b64decode(found.get("value", ""))
        fields = fields_of(value)
        lease = lease_of(str(fields.get("holder", "")), fields)
        version = self._keep(found["mod_revision"], value)
        return Stored(lease, version, found["create_revision"])

    def _keep(self, revision: str, value: bytes) -> str:
        """Keep a value for the next write; return its version."""
        digest = hashlib.blake2s(value, digest_size=DIGEST_SIZE).hexdigest()
        version = f"{revision}-{digest}"
        self._read[version] = value
        if len(self._read) > KEPT:
            self._read.popitem(last=False)
        return version


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()
