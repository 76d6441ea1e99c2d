"""The error tree: a stable code, the facts as attributes, what is still safe, what to do.

Every code heads an entry in docs/runbook.md. A message reads
``[code] what happened, with number, limit and path. What is still safe. What to do.``
Expected outcomes are values, not exceptions; these are for what the caller asked and did not get.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Final

if TYPE_CHECKING:
    from pathlib import Path

NAMED_MAX: Final = 8
"""So many of a list of files are named in one sentence."""


class TidemarkError(Exception):
    """Base of all errors that a user of Tidemark can meet.

    code: stable, kebab-case, a heading of docs/runbook.md. status: the HTTP status it is answered
    with. retriable: the same call, unchanged, may succeed later. facts: numbers and names, also
    reachable as attributes.
    """

    code: ClassVar[str] = "internal"
    title: ClassVar[str] = "Something failed that should not"
    status: ClassVar[int] = 500
    retriable: ClassVar[bool] = False

    def __init__(self, detail: str, advice: str = "", **facts: Any) -> None:
        self.detail = detail
        self.advice = advice
        self.facts = facts
        super().__init__(f"[{self.code}] {detail}" + (f" {advice}" if advice else ""))

    def __reduce__(self) -> tuple[Any, ...]:
        # Not by calling the class: some take the store's facts in place of a ready sentence.
        kind = type(self)
        made_by: tuple[Any, ...] = (_same, (kind,))
        if kind.__module__ == LATER:
            made_by = (kind_of_later, (kind.code, kind.title, kind.status, kind.retriable))
        return _restored, (*made_by, self.args), self.__dict__

    def __getattr__(self, name: str) -> Any:
        facts = self.__dict__.get("facts", {})
        if name in facts:
            return facts[name]
        raise AttributeError(f"{type(self).__name__} has no fact {name!r}")


LATER: Final = "answered"
"""Module of the classes for codes that only a later version knows."""


@functools.lru_cache(maxsize=256)
def kind_of_later(code: str, title: str, status: int, retriable: bool) -> type[TidemarkError]:
    """A class for a code of a later version: still a TidemarkError with that code."""
    members = {
        "__module__": LATER,  # not ours: no heading of the runbook speaks of it
        "code": code,
        "title": title,
        "status": status,
        "retriable": retriable,
    }
    return type("TidemarkError", (TidemarkError,), members)


def _same(kind: type[TidemarkError]) -> type[TidemarkError]:
    return kind


def _restored(
    kind_of: Callable[..., type[TidemarkError]],
    described: tuple[Any, ...],
    args: tuple[Any, ...],
) -> TidemarkError:
    """An error as it was pickled or copied; its attributes follow."""
    kind = kind_of(*described)
    return kind.__new__(kind, *args)


class StoreError(TidemarkError):
    """What the files, or the disk under them, did."""


class CorruptRecord(StoreError):
    """Bytes in the commit log that cannot be trusted, below a durable mark."""

    code, title, status = "corrupt-record", "The commit log is damaged", 503

    def __init__(self, at: int, reason: str, path: Path | None = None) -> None:
        where = f" in {path}" if path else ""
        super().__init__(
            f"commit log unreadable at physical offset {at}{where}: {reason}. "
            "Nothing from there on is served; nothing was cut.",
            "Run `tidemark store verify`, then copy the file from another replica "
            "or cut it with `tidemark store repair`.",
            at=at,
            reason=reason,
            path=path,
        )


class LogFilesMissing(CorruptRecord):
    """Files of the commit log that were there are not."""

    code, title = "log-files-missing", "Files of the commit log are missing"

    def __init__(
        self, at: int, reason: str, path: Path, *, found: int | None, is_first: bool
    ) -> None:
        """at: where the missing bytes begin. found: where records go on behind them; None: nowhere.
        is_first: nothing lies before them."""
        cut = f"`tidemark store repair --cut-at {at} --yes` gives up what is behind it"
        begin = f"`tidemark store repair --begin-at {found} --yes` gives up what is before"
        ways = [*([] if is_first else [cut]), *([] if found is None else [begin])]
        StoreError.__init__(
            self,
            f"the commit log lacks the bytes from physical offset {at} on ({path}): {reason}. "
            "Nothing is served, nothing was changed.",
            "Stop the node and put the file back (from where it was moved to, a backup, another "
            f"replica). Without it, {', '.join(ways) or '`tidemark store repair` says more'}.",
            at=at,
            reason=reason,
            path=path,
            found=found,
        )


class LogFilesMisnamed(CorruptRecord):
    """Files of the commit log lie under each other's names; what is in them is sound."""

    code, title = "log-files-misnamed", "Files of the commit log have wrong names"

    def __init__(self, at: int, named: Mapping[int, int], path: Path) -> None:
        """at: start of the first of them, by its name. named: start by name → true start. path: of
        that file, in its store's ``commitlog/``."""
        first = sorted(named.items())[:NAMED_MAX]
        which = ", ".join(f"{name:020d} is {true:020d}" for name, true in first)
        if len(named) > NAMED_MAX:
            which += f" and {len(named) - NAMED_MAX} more"
        StoreError.__init__(
            self,
            f"files in {path.parent} were renamed, by what their first records say: {which}. "
            "Nothing is served, nothing was changed.",
            "Stop the node and give them their names back, which loses nothing: "
            f"`tidemark store repair --store {path.parent.parent} --rename`.",
            at=at,
            reason="renamed",
            path=path,
        )


class LogFileReplaced(StoreError):
    """An open log file lost its name, or its name leads to another file now."""

    code, title = "log-file-replaced", "A commit log file was changed under a running node"


class DamagedFile(StoreError):
    """A derived or small file (queue, index, checkpoint, JSON) that cannot be trusted."""

    code, title, status = "damaged-file", "A derived file is damaged", 503


class UnreadableState(StoreError):
    """A sound record of the node's own topic that says nothing this version understands."""

    code, title = "state-record-unreadable", "A state record cannot be read"


class QueueGap(StoreError):
    """A record's queue offset is beyond its queue's end: dispatch would misplace the unit."""

    code, title = "queue-gap", "A consume queue has a gap"


class StrayFile(StoreError):
    """A file that does not belong into a directory of fixed-size files."""

    code, title = "stray-file", "A file does not belong here"


class WrongFileSize(StoreError):
    """A file of another size than this store is configured for."""

    code, title = "wrong-file-size", "A file has the wrong size"


class StoreSizesDiffer(StoreError):
    """The store was made with other file sizes than configured now."""

    code, title = "store-sizes-differ", "The store has other sizes than configured"


class StoreLocked(StoreError):
    """Another process holds the store."""

    code, title = "store-locked", "Another process holds the store"


class StoreFormatUnknown(StoreError):
    """The store was written by a later version."""

    code, title = "store-format-unknown", "The store's format is not known"


class StoreMissing(StoreError):
    """There is no store where one was to be read."""

    code, title, status = "store-missing", "There is no store here", 404


class PathTooLong(StoreError):
    """A socket's path is longer than the kernel takes."""

    code, title = "path-too-long", "A path is too long for a socket"


class DiskFull(StoreError):
    """No blocks left for what must be written."""

    code, title, status, retriable = "disk-full", "The disk is full", 507, True


class ReadOnlyDisk(StoreError):
    """The file system refuses writes."""

    code, title, status, retriable = "read-only-disk", "The disk is read-only", 507, True


class OutOfResources(StoreError):
    """The system gives this process no further descriptor, mapping or memory for a file."""

    code, title, status = "out-of-resources", "The process is at a limit of the system", 503
    retriable = True


class ReadFailed(StoreError):
    """The disk did not give back the bytes of a file."""

    code, title, status = "read-failed", "A read from the disk failed", 503


class WriteFailed(StoreError):
    """A write to the commit log failed part-way; nothing of it was published. The process ends.

    The outcome is unknown, as after ``ack-timeout``: records that were written whole before the
    failure are there after the next start. A repeat with the same unique ids is stored once. To a
    sender ``results`` says of each message where it is if it is there, and ``outcome``.
    """

    code, title, status = "write-failed", "A write to the commit log failed", 504
    retriable = True
    appended: object | None = None
    """Of an append: where its records were to be, as the broker's ``append`` says it."""


class FlushFailed(StoreError):
    """fdatasync failed: what the page cache holds may never reach the disk. The process ends."""

    code, title = "flush-failed", "A flush to disk failed"


class MemoryLockRefused(StoreError):
    """The system does not let a file be held in memory. A warning: everything works without."""

    code, title = "memory-lock-refused", "A file cannot be locked in memory"


class ReplacedPositions(StoreError):
    """The mapped checkpoint page is no longer the file at its path. The process ends."""

    code, title = "positions-replaced", "The checkpoint file was replaced under a running process"


class RestartNeeded(StoreError):
    """Something that this process was started without is there again. The process ends."""

    code, title, status, retriable = "restart-needed", "The process has to start again", 503, True


class GroupStore(StoreError):
    """The store belongs to a group and was to be opened alone, or the other way round."""

    code, title = "group-store", "The store belongs to another kind of node"


class HaltedReplica(StoreError):
    """What this replica holds contradicts what the group confirmed. It serves nothing."""

    code, title, status = "halted-replica", "The replica is halted", 503


class FileNotReady(StoreError):
    """The next commit log file was not there in time."""

    code, title, status, retriable = "file-not-ready", "The next file is not ready", 503, True


class RequestError(TidemarkError):
    """What a caller asked for and cannot have."""

    status = 400


class BadRequest(RequestError):
    """A field is missing, of the wrong type or out of its range."""

    code, title = "bad-request", "The request is not understood"


class BadName(RequestError):
    """A topic or group name outside the rule."""

    code, title = "bad-name", "The name is not allowed"


class BadProperty(RequestError):
    """A property that could not be stored as given."""

    code, title = "bad-property", "The property is not allowed"


class MessageTooLarge(RequestError):
    """Larger than the store or the request limit takes."""

    code, title, status = "too-large", "Too large", 413


class TooManyMessages(RequestError):
    """More messages in one request than allowed."""

    code, title, status = "too-many-messages", "Too many messages in one request", 413


class TooManyValues(RequestError):
    """More values in one request body than a broker decodes."""

    code, title, status = "too-many-values", "Too many values in one request", 413


class UnsupportedMediaType(RequestError):
    """A content type we do not speak."""

    code, title, status = "unsupported-media-type", "Content type not supported", 415


class UnknownTopic(RequestError):
    """No topic of that name."""

    code, title, status = "unknown-topic", "No such topic", 404


class NotPermitted(RequestError):
    """The topic's permissions do not allow it."""

    code, title, status = "not-permitted", "The topic does not allow this", 403


class UnknownQueue(RequestError):
    """The topic has no such queue."""

    code, title, status = "unknown-queue", "No such queue", 404


class UnknownMessage(RequestError):
    """No message of that id, or it has expired."""

    code, title, status = "unknown-message", "No such message", 404


class UnknownGroup(RequestError):
    """No consumer group of that name."""

    code, title, status = "unknown-group", "No such group", 404


class UnknownMember(RequestError):
    """The group has no such member: it never joined, left, or its session expired."""

    code, title, status = "unknown-member", "No such member", 404


class MemberFenced(RequestError):
    """Another program has joined the group under the member's name since."""

    code, title, status = "member-fenced", "Another has joined under this member's name", 409


class StaleGeneration(RequestError):
    """The group's queues have been assigned anew since the generation that the caller names."""

    code, title, status = "stale-generation", "The generation is not the current one", 409


class NotAssigned(RequestError):
    """The queue is assigned to another member, or to none."""

    code, title, status = "not-assigned", "The queue is not assigned to this member", 409


class MemberRequired(RequestError):
    """The group has members, and the caller does not say which one it is."""

    code, title, status = "member-required", "Only members may do this now", 409


class OffsetBeyondEnd(RequestError):
    """A commit behind the last message of the queue."""

    code, title = "offset-beyond-end", "The offset is beyond the queue's end"


class GroupInUse(RequestError):
    """The group has members, and what is asked would be done behind their backs."""

    code, title, status = "group-in-use", "The group has members", 409


class BroadcastGroup(RequestError):
    """Members of a broadcast group keep their own offsets; nothing is sent back to it."""

    code, title, status = "broadcast-group", "Not for broadcast groups", 409


class ConsumeDisabled(RequestError):
    """The group's configuration does not let it consume."""

    code, title, status = "consume-disabled", "The group may not consume", 403


class BadTags(RequestError):
    """A tag expression that is neither * nor tags with || between them."""

    code, title = "bad-tags", "The tag expression is not understood"


class DelayOutOfRange(RequestError):
    """A delay level that is not configured, or a time too far ahead."""

    code, title = "delay-out-of-range", "The delay is out of range"


class UnknownDelayed(RequestError):
    """No delayed message of that id waits: it was delivered, cancelled, or never was."""

    code, title, status = "unknown-delayed", "No such delayed message", 404


class UnknownCall(RequestError):
    """No such path, or not with this method."""

    code, title, status = "unknown-call", "No such call", 404


class UnknownMethod(RequestError):
    """The path is known, but not with this method."""

    code, title, status = "unknown-method", "No such method for this path", 405


class SlowRequest(RequestError):
    """The request did not arrive in time. Nothing was stored."""

    code, title, status = "slow-request", "The request took too long to arrive", 408
    retriable = True


class NotServing(TidemarkError):
    """The node is not ready (recovering, corrupt, stopping): nothing was stored."""

    code, title, status, retriable = "not-serving", "The node does not serve now", 503, True


class DispatchBehind(NotServing):
    """Undispatched bytes exceed dispatch_lag_max."""

    code, title = "dispatch-behind", "Dispatch is too far behind"


class Overloaded(NotServing):
    """A bound on connections, held requests or waiting bytes is reached."""

    code, title = "overloaded", "The node is at a limit"


class NotMaster(NotServing):
    """Only the master of the group does this; facts: master, api (both None while unknown)."""

    code, title, status = "not-master", "Another node is the master", 421


class Fenced(NotServing):
    """The node was master, and its lease is over or lost: it answers nothing for the group."""

    code, title = "fenced", "The node is no longer the master"


class SwitchingOver(NotServing):
    """A planned switch is under way: sends wait for the next master. Nothing was stored."""

    code, title = "switching-over", "The master is being switched"


class NotEnoughReplicas(NotServing):
    """The asked level needs more copies than this node has."""

    code, title = "not-enough-replicas", "Not enough replicas"


class NodeAlone(NotEnoughReplicas):
    """The node is in no group: it will never have a second copy."""

    retriable = False


class AckTimeout(TidemarkError):
    """Stored, but the asked level was not reached in time: the outcome is unknown."""

    code, title, status, retriable = "ack-timeout", "Stored, level not reached in time", 504, True


class ClusterRefused(TidemarkError):
    """A cluster command that its guard does not allow; nothing was changed."""

    code, title, status = "cluster-refused", "The cluster command is refused", 409


class LeaseUnavailable(TidemarkError):
    """Where the lease is kept cannot be reached, or does not answer in time."""

    code, title, status, retriable = "lease-unavailable", "The lease cannot be reached", 503, True


class Unreachable(TidemarkError):
    """The client could not reach the broker, or lost the connection before the answer."""

    code, title, status, retriable = "unreachable", "The broker cannot be reached", 503, True


class BadConfig(TidemarkError):
    """Settings that cannot be used; names every one of them at once."""

    code, title = "bad-config", "The configuration has mistakes"


class CannotListen(TidemarkError):
    """A port is taken, or not ours to take. The process ends."""

    code, title = "cannot-listen", "A port cannot be listened on"


class PartEnded(TidemarkError):
    """A part of a service returned although nobody asked it to stop; the process ends."""

    code, title = "part-ended", "A part of the service ended by itself"


class BrokenAnswer(TidemarkError):
    """The other side does not speak our protocol: a proxy, another server, another version."""

    code, title, status = "broken-answer", "The answer is not understood", 502

    def __init__(self, detail: str) -> None:
        super().__init__(detail, "Check that the URL is a Tidemark broker's and not a proxy's.")
