"""The error classes: each has a stable code, facts as attributes, and advice.

Every code is a heading in docs/runbook.md. A message has the form
``[code] what happened, with number, limit and path. What is still safe. What to do.``
Expected outcomes are values, not exceptions; exceptions are for requests that failed.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final

if TYPE_CHECKING:
    from pathlib import Path

NAMED_MAX: Final = 8
"""Maximum number of files that one message lists."""


class TidemarkError(Exception):
    """Base class of all errors of Tidemark.

    code: stable, kebab-case, a heading of docs/runbook.md. status: HTTP status of the answer.
    retriable: the same call, unchanged, may succeed later. facts: numbers and names, also available
    as attributes.
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
        # The class is not called: some take other arguments than a message, advice and facts.
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


OS_ERROR: Final = "os-error"
"""Code of an ``OSError`` that no class of this module covers."""


def code_of(error: TidemarkError | OSError) -> str:
    """Return the code under which a process reports the error."""
    return error.code if isinstance(error, TidemarkError) else OS_ERROR


LATER: Final = "answered"
"""Name of the module of classes for error codes that only later versions define."""


@functools.lru_cache(maxsize=256)
def kind_of_later(code: str, title: str, status: int, retriable: bool) -> type[TidemarkError]:
    """Make a class for a code of a later version: a TidemarkError subclass with that code."""
    members = {
        "__module__": LATER,  # not this module, whose classes all have an entry in the runbook
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
    """Recreate an error that was pickled or copied; its attributes are set afterwards."""
    kind = kind_of(*described)
    return kind.__new__(kind, *args)


class StoreError(TidemarkError):
    """An error of the store's files or of the disk."""


class CorruptRecord(StoreError):
    """Bytes in the commit log, below a durable position, are damaged."""

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


NO_FILES_LEFT: Final = (
    "`tidemark store repair` names the `--begin-at` with which an empty log continues the queues"
)


class LogFilesMissing(CorruptRecord):
    """Files of the commit log that existed are missing."""

    code, title = "log-files-missing", "Files of the commit log are missing"

    def __init__(
        self, at: int, reason: str, path: Path, *, found: int | None, is_first: bool
    ) -> None:
        """at: start of the missing bytes. found: where records continue after them; None: nowhere.

        is_first: whether no records precede the missing bytes.
        """
        cut = f"`tidemark store repair --cut-at {at} --yes` gives up the records after it"
        begin = f"`tidemark store repair --begin-at {found} --yes` gives up the records before it"
        ways = [*([] if is_first else [cut]), *([] if found is None else [begin])]
        StoreError.__init__(
            self,
            f"the commit log lacks the bytes from physical offset {at} on ({path}): {reason}. "
            "Nothing is served, nothing was changed.",
            "Stop the node and put the file back (from where it was moved to, a backup, another "
            f"replica). Without it, {', '.join(ways) or NO_FILES_LEFT}.",
            at=at,
            reason=reason,
            path=path,
            found=found,
        )


class LogFilesMisnamed(CorruptRecord):
    """Files of the commit log have each other's names; their contents are sound."""

    code, title = "log-files-misnamed", "Files of the commit log have wrong names"

    def __init__(self, at: int, named: Mapping[int, int], path: Path) -> None:
        """named: maps the start offset in each file's name to the true one. at: the lowest start
        offset in a name. path: the file of that name."""
        first = sorted(named.items())[:NAMED_MAX]
        which = ", ".join(f"{name:020d} is {true:020d}" for name, true in first)
        if len(named) > NAMED_MAX:
            which += f" and {len(named) - NAMED_MAX} more"
        StoreError.__init__(
            self,
            f"files in {path.parent} were renamed, according to their first records: {which}. "
            "Nothing is served, nothing was changed.",
            "Stop the node and restore their names, which loses nothing: "
            f"`tidemark store repair --store {path.parent.parent} --rename`.",
            at=at,
            reason="renamed",
            path=path,
        )


class LogFileReplaced(StoreError):
    """An open log file has lost its name, or its name now refers to another file."""

    code, title = "log-file-replaced", "A commit log file was changed under a running node"


class DamagedFile(StoreError):
    """A derived or small file (queue, index, checkpoint, JSON) is damaged."""

    code, title, status = "damaged-file", "A derived file is damaged", 503


class UnreadableState(StoreError):
    """A sound record of the node's own topic that this version does not understand."""

    code, title = "state-record-unreadable", "A state record cannot be read"


class QueueGap(StoreError):
    """A record's queue offset is beyond its queue's end: dispatch would misplace the unit."""

    code, title = "queue-gap", "A consume queue has a gap"


class StrayFile(StoreError):
    """A file that does not belong in a directory of fixed-size files."""

    code, title = "stray-file", "A file does not belong here"


class WrongFileSize(StoreError):
    """The size of a file differs from the store's configuration."""

    code, title = "wrong-file-size", "A file has the wrong size"


class StoreSizesDiffer(StoreError):
    """The store was created with other file sizes than those configured now."""

    code, title = "store-sizes-differ", "The store has other sizes than configured"


class StoreLocked(StoreError):
    """Another process has locked the store."""

    code, title = "store-locked", "Another process holds the store"


class StoreFormatUnknown(StoreError):
    """The store was written by a later version."""

    code, title = "store-format-unknown", "The store's format is not known"


class StoreMissing(StoreError):
    """The store to be read does not exist."""

    code, title, status = "store-missing", "There is no store here", 404


class PathTooLong(StoreError):
    """The path of a socket is longer than the kernel allows."""

    code, title = "path-too-long", "A path is too long for a socket"


class DiskFull(StoreError):
    """The file system has no space left for a write."""

    code, title, status, retriable = "disk-full", "The disk is full", 507, True


class ReadOnlyDisk(StoreError):
    """The file system rejects writes."""

    code, title, status, retriable = "read-only-disk", "The disk is read-only", 507, True


class OutOfResources(StoreError):
    """The system grants no further descriptor, mapping or memory for a file."""

    code, title, status = "out-of-resources", "The process is at a limit of the system", 503
    retriable = True


class ReadFailed(StoreError):
    """The disk failed to read bytes of a file."""

    code, title, status = "read-failed", "A read from the disk failed", 503


class WriteFailed(StoreError):
    """A write to the commit log failed part-way; nothing of it was published. The process ends.

    The outcome is unknown, as after ``ack-timeout``: records that were written completely before
    the failure exist after the next start. A retry with the same unique ids is stored once. For a
    sender, ``results`` has the position of each message if it exists, and ``outcome``.
    """

    code, title, status = "write-failed", "A write to the commit log failed", 504
    retriable = True
    appended: object | None = None
    """For an append: where its records would be, as the broker's ``append`` returns it."""


class FlushFailed(StoreError):
    """fdatasync failed: data in the page cache may never reach the disk. The process ends."""

    code, title = "flush-failed", "A flush to disk failed"


class MemoryLockRefused(StoreError):
    """The system refuses to lock a file in memory. A warning: everything works without it."""

    code, title = "memory-lock-refused", "A file cannot be locked in memory"


class ReplacedPositions(StoreError):
    """The mapped checkpoint page is no longer the file at its path. The process ends."""

    code, title = "positions-replaced", "The checkpoint file was replaced under a running process"


class RestartNeeded(StoreError):
    """A resource that was missing at the start is available again. The process ends."""

    code, title, status, retriable = "restart-needed", "The process has to start again", 503, True


class GroupStore(StoreError):
    """The store belongs to a group and was opened for a node without one, or the reverse."""

    code, title = "group-store", "The store belongs to another kind of node"


class HaltedReplica(StoreError):
    """This replica's data contradicts what the group confirmed. It serves nothing."""

    code, title, status = "halted-replica", "The replica is halted", 503


class FileNotReady(StoreError):
    """The next commit log file was not created in time."""

    code, title, status, retriable = "file-not-ready", "The next file is not ready", 503, True


class RequestError(TidemarkError):
    """A request that cannot be fulfilled."""

    status = 400


class BadRequest(RequestError):
    """A field is missing, has the wrong type or is out of range."""

    code, title = "bad-request", "The request is not understood"


class BadName(RequestError):
    """A topic or group name that breaks the naming rule."""

    code, title = "bad-name", "The name is not allowed"


class BadProperty(RequestError):
    """A property that cannot be stored as given."""

    code, title = "bad-property", "The property is not allowed"


class MessageTooLarge(RequestError):
    """The message exceeds the limit of the store or of a request."""

    code, title, status = "too-large", "Too large", 413


class TooManyMessages(RequestError):
    """One request has more messages than allowed."""

    code, title, status = "too-many-messages", "Too many messages in one request", 413


class TooManyValues(RequestError):
    """One request body has more values than a broker decodes."""

    code, title, status = "too-many-values", "Too many values in one request", 413


class UnsupportedMediaType(RequestError):
    """The content type is not supported."""

    code, title, status = "unsupported-media-type", "Content type not supported", 415


class UnknownTopic(RequestError):
    """There is no topic of that name."""

    code, title, status = "unknown-topic", "No such topic", 404


class NotPermitted(RequestError):
    """The topic's permissions do not allow it."""

    code, title, status = "not-permitted", "The topic does not allow this", 403


class Drained(RequestError):
    """An operator has closed the node to producers; consumers go on."""

    code, title, status = "drained", "The broker group is drained", 403


class UnknownQueue(RequestError):
    """The topic has no queue of that number."""

    code, title, status = "unknown-queue", "No such queue", 404


class UnknownMessage(RequestError):
    """There is no message of that id, or it has expired."""

    code, title, status = "unknown-message", "No such message", 404


class UnknownGroup(RequestError):
    """There is no consumer group of that name."""

    code, title, status = "unknown-group", "No such group", 404


class UnknownMember(RequestError):
    """The group has no such member: it never joined, left, or its session expired."""

    code, title, status = "unknown-member", "No such member", 404


class MemberFenced(RequestError):
    """Another program has since joined the group under the member's name."""

    code, title, status = "member-fenced", "Another has joined under this member's name", 409


class StaleGeneration(RequestError):
    """The queues were assigned anew since the generation that the caller sent."""

    code, title, status = "stale-generation", "The generation is not the current one", 409


class NotAssigned(RequestError):
    """The queue is assigned to another member or is unassigned."""

    code, title, status = "not-assigned", "The queue is not assigned to this member", 409


class MemberRequired(RequestError):
    """The group has members, and the request does not name one of them."""

    code, title, status = "member-required", "Only members may do this now", 409


class OffsetBeyondEnd(RequestError):
    """A commit after the last message of the queue."""

    code, title = "offset-beyond-end", "The offset is beyond the queue's end"


class GroupInUse(RequestError):
    """The group has members, which the requested change would affect unnoticed."""

    code, title, status = "group-in-use", "The group has members", 409


class BroadcastGroup(RequestError):
    """Members of a broadcast group keep their own offsets; its messages cannot be nacked."""

    code, title, status = "broadcast-group", "Not for broadcast groups", 409


class ConsumeDisabled(RequestError):
    """The group's configuration does not let it consume."""

    code, title, status = "consume-disabled", "The group may not consume", 403


class BadTags(RequestError):
    """A tag expression that is neither ``*`` nor tags separated by ``||``."""

    code, title = "bad-tags", "The tag expression is not understood"


class DelayOutOfRange(RequestError):
    """A delay level that is not configured, or a time too far in the future."""

    code, title = "delay-out-of-range", "The delay is out of range"


class UnknownDelayed(RequestError):
    """No delayed message of that id waits: it was delivered, cancelled or never existed."""

    code, title, status = "unknown-delayed", "No such delayed message", 404


class IndexDisabled(RequestError):
    """The store has no index, without which redriven dead letters cannot be recognised."""

    code, title, status = "index-disabled", "The store keeps no index", 409


class UnknownCall(RequestError):
    """There is no such path, or not with this method."""

    code, title, status = "unknown-call", "No such call", 404


class UnknownMethod(RequestError):
    """The path is known, but not with this method."""

    code, title, status = "unknown-method", "No such method for this path", 405


class SlowRequest(RequestError):
    """The request did not arrive completely in time. Nothing was stored."""

    code, title, status = "slow-request", "The request took too long to arrive", 408
    retriable = True


class NotServing(TidemarkError):
    """The node is not ready (recovering, corrupt, stopping): nothing was stored."""

    code, title, status, retriable = "not-serving", "The node does not serve now", 503, True


class DispatchBehind(NotServing):
    """Undispatched bytes exceed dispatch_lag_max."""

    code, title = "dispatch-behind", "Dispatch is too far behind"


class Overloaded(NotServing):
    """A limit on connections, held requests or waiting bytes is reached."""

    code, title = "overloaded", "The node is at a limit"


class NotMaster(NotServing):
    """Only the master of the group can do this; facts: master, api (both None while unknown)."""

    code, title, status = "not-master", "Another node is the master", 421


class Fenced(NotServing):
    """The node was master and its lease has expired or was lost: it answers no group request."""

    code, title = "fenced", "The node is no longer the master"


class SwitchingOver(NotServing):
    """A switchover is in progress: sends are refused until the next master. Nothing was stored."""

    code, title = "switching-over", "The master is being switched"


class NotEnoughReplicas(NotServing):
    """The requested ack level needs more copies than there are replicas."""

    code, title = "not-enough-replicas", "Not enough replicas"


class NodeAlone(NotEnoughReplicas):
    """The node is in no group, so a second copy is impossible."""

    retriable = False


class RouteIncomplete(NotServing):
    """A name service has just started and has not heard of every broker group yet."""

    code, title = "route-incomplete", "The name service does not know all broker groups yet"


class RegistrationRefused(TidemarkError):
    """A registration that a name service does not accept; what it knew before stays."""

    status = 409


class WrongCluster(RegistrationRefused):
    """A broker registers with another cluster's name service, or an address of a client belongs to
    another cluster than those before it."""

    code, title = "wrong-cluster", "The address or broker belongs to another cluster"


class BadSignature(RegistrationRefused):
    """The registration is not signed with the cluster's secret."""

    code, title, status = "bad-signature", "The registration is not signed as it should be", 403


class ClockSkew(RegistrationRefused):
    """The clocks of broker and name service differ too much; facts: difference_ms, limit_ms."""

    code, title, status = "clock-skew", "Two clocks differ too much", 403


class StaleRegistration(RegistrationRefused):
    """A later registration is known; facts: epoch and counter of that one."""

    code, title = "stale-registration", "A later registration is known"


class UnknownBase(RegistrationRefused):
    """The difference is to a registration that the name service does not have."""

    code, title = "registration-base-unknown", "The difference has an unknown base"


class BrokerGroupConflict(RegistrationRefused):
    """Two stores claim the same node, or two nodes the same term: broker groups of one name."""

    code, title = "broker-group-conflict", "Two broker groups have one name"


class NodeIdentityTaken(RegistrationRefused):
    """Another node has registered with the id of the same store: a copied directory."""

    code, title = "node-identity-taken", "Two nodes have one store id"


class NamesLimit(RegistrationRefused):
    """A bound of the name service on broker groups, nodes or topics is reached."""

    code, title, status = "names-limit", "A bound of the name service is reached", 413


class AckTimeout(TidemarkError):
    """Stored, but the requested level was not reached in time: the outcome is unknown."""

    code, title, status, retriable = "ack-timeout", "Stored, level not reached in time", 504, True


class ClusterRefused(TidemarkError):
    """A cluster command that its safety check rejects; nothing was changed."""

    code, title, status = "cluster-refused", "The cluster command is refused", 409


class LeaseUnavailable(TidemarkError):
    """The lease store cannot be reached or does not answer in time."""

    code, title, status, retriable = "lease-unavailable", "The lease cannot be reached", 503, True


class Unreachable(TidemarkError):
    """The client could not reach the broker, or lost the connection before the answer."""

    code, title, status, retriable = "unreachable", "The broker cannot be reached", 503, True


class BrokerGroupDown(TidemarkError):
    """A broker group of the cluster does not serve now."""

    code, title, status, retriable = "broker-group-down", "A broker group does not serve", 503, True

    def __init__(self, broker_group: str, reason: str) -> None:
        super().__init__(
            f"broker group {broker_group} does not serve now: {reason}. Nothing was sent.",
            "Check its nodes with `tidemark cluster groups`; try again when it has a master.",
            broker_group=broker_group,
        )


class UnknownBrokerGroup(RequestError):
    """The cluster has no broker group of this name."""

    code, title, status = "unknown-broker-group", "No such broker group", 404

    def __init__(self, broker_group: str, known: Sequence[str]) -> None:
        there = f"it has {', '.join(known)}" if known else "the broker is not part of a cluster"
        super().__init__(
            f"there is no broker group {broker_group!r}: {there}. Nothing was sent.",
            "`tidemark cluster groups` lists them.",
            broker_group=broker_group,
        )


class PartialFailure(TidemarkError):
    """A call to several broker groups has failed at some of them."""

    code, title, status = "partial-failure", "Some broker groups have failed", 502
    retriable = True

    def __init__(self, failed: Mapping[str, TidemarkError], done: Sequence[str]) -> None:
        """failed: the error of each broker group. done: those where the call has succeeded."""
        self.errors = dict(failed)
        self.answer: object = None
        """What the other broker groups have answered, for a call that only reads."""
        causes = "; ".join(f"{name}: {error}" for name, error in failed.items())
        super().__init__(
            f"{len(failed)} of {len(failed) + len(done)} broker groups have failed ({causes}). "
            f"Done at {', '.join(done) or 'none'}.",
            "Repeat the call: what is done already stays as it is.",
            failed={name: error.code for name, error in failed.items()},
            done=list(done),
        )


class BadConfig(TidemarkError):
    """Invalid settings; lists all of them at once."""

    code, title = "bad-config", "The configuration has mistakes"


class CannotListen(TidemarkError):
    """A port is in use or not permitted. The process ends."""

    code, title = "cannot-listen", "A port cannot be listened on"


class PartEnded(TidemarkError):
    """A part of a service ended although it was not asked to stop; the process ends."""

    code, title = "part-ended", "A part of the service ended unexpectedly"


class BrokenAnswer(TidemarkError):
    """The answer does not follow the protocol: a proxy, another server, another version."""

    code, title, status = "broken-answer", "The answer is not understood", 502

    def __init__(self, detail: str) -> None:
        super().__init__(detail, "Check that the URL is a Tidemark broker's and not a proxy's.")
