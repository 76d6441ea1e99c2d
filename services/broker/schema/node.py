"""The node: retention, and the nodes of its group. Pure."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from msgspec import UNSET, Meta, UnsetType

from services.broker.schema.calls import Call
from services.broker.schema.values import Answer, Count

Percent = Annotated[int, Meta(ge=0, le=100)]
Why = Literal["age", "size", "disk_pressure", "master"]
Stay = Literal[
    "last", "not_dispatched", "not_confirmed", "no_snapshot", "snapshot", "needed", "master_keeps",
    "nothing_asks",
]  # fmt: skip


class RetentionSpace(Answer, frozen=True):
    """The space on one disk."""

    path: str
    used_bytes: Annotated[Count | None, Meta(description="null if the disk gave no answer.")]
    available_bytes: Annotated[
        Count | None, Meta(description="Bytes that an ordinary user can still allocate.")
    ]
    used_percent: Annotated[
        Percent | None, Meta(description="Whole percent, rounded up; the rules use it.")
    ]


class RetentionPolicy(Answer, frozen=True):
    """The rules of retention."""

    age_ms: Count
    delete_hours: list[Annotated[int, Meta(ge=0, le=23)]]
    size_max: Count
    used_percent_max: Percent
    forcible_percent: Percent
    warning_percent: Percent
    forcibly: bool


class OldestFile(Answer, frozen=True):
    """The oldest log file."""

    start: Count
    end: Count
    modified_ms: Annotated[Count, Meta(description="Its age counts from here.")]
    age_ms: Count


class NextDeletion(Answer, frozen=True):
    """The next deletion of a log file."""

    at_ms: Annotated[Count | None, Meta(description="null: the file is kept, see `kept_by`.")]
    why: Why | None
    kept_by: Annotated[Stay | None, Meta(description="What keeps the oldest file.")]
    groups_with_unread_messages: Annotated[
        Count, Meta(description="Groups with unread messages in that file, if it is deleted soon.")
    ]


class DeletedFiles(Answer, frozen=True):
    """Deleted log files by cause."""

    age: Count
    size: Count
    disk_pressure: Count
    master: Count


class Forecast(Answer, frozen=True):
    """When the disk will be full."""

    full_in_s: Annotated[
        Annotated[float, Meta(ge=0)] | None,
        Meta(description="Time until sends are refused at the present pace; null: see `reason`."),
    ]
    growth_bytes_per_s: float | None
    reason: Literal["disk_not_measured", "too_few_samples", "not_growing", "too_far_ahead"] | None


class Retention(Answer, frozen=True):
    """How full the disk is, and what is deleted next."""

    pressure: Literal["none", "expired_go", "forced", "sends_stop"]
    sends_refused: bool
    log: RetentionSpace
    queues: RetentionSpace
    policy: RetentionPolicy
    log_files: Count
    min_offset: Annotated[Count, Meta(description="Physical offset at which the log begins.")]
    oldest_file: OldestFile | None
    next_deletion: NextDeletion
    deleted_files: DeletedFiles
    forecast: Forecast


class ClusterEpoch(Answer, frozen=True):
    """One epoch in the log."""

    epoch: Count
    start: Annotated[Count, Meta(description="Physical offset of its first record.")]
    node: Annotated[str | None, Meta(description="Its master, or the address of an unknown one.")]
    at_ms: Annotated[Count | None, Meta(description="When it began; null: the record has expired.")]


class ClusterNode(Answer, frozen=True):
    """One node of the group."""

    node: str
    role: str | UnsetType | None = UNSET
    state: str | UnsetType | None = UNSET
    incarnation: str | UnsetType | None = UNSET
    in_sync: Annotated[
        bool | UnsetType | None, Meta(description="Only in-sync nodes may become master.")
    ] = UNSET
    api: Annotated[str | UnsetType | None, Meta(description="Where clients reach it.")] = UNSET
    admin: str | UnsetType | None = UNSET
    first_offset: Annotated[Count | UnsetType | None, Meta(description="Where its log begins.")] = (
        UNSET
    )
    log_end: Count | UnsetType | None = UNSET
    durable_end: Count | UnsetType | None = UNSET
    confirm: Count | UnsetType | None = UNSET
    lag_bytes: Count | UnsetType | None = UNSET
    lag_ms: Count | UnsetType | None = UNSET
    reason: Annotated[
        str | UnsetType | None,
        Meta(description="Why a value is unknown, or what is wrong."),
    ] = UNSET
    seen_ms_ago: Count | UnsetType | None = UNSET


class Draining(Answer, frozen=True):
    """Whether producers may send."""

    draining: bool
    since_ms: Annotated[
        int | None, Meta(description="Wall clock time of the command; null: producers may send.")
    ]
    changed: Annotated[
        bool | UnsetType, Meta(description="False: it was so already, and nothing was changed.")
    ] = UNSET


class Cluster(Answer, frozen=True):
    """The group of a node."""

    cluster: str | None
    group: str | None
    epoch: Count | None
    master: Annotated[str | None, Meta(description="A node; null: there is none, or see `reason`.")]
    nodes: list[ClusterNode]
    min_in_sync: Count | UnsetType | None = UNSET
    paused: bool | UnsetType | None = UNSET
    lease: dict[str, Any] | UnsetType | None = UNSET
    history: list[ClusterEpoch] | UnsetType = UNSET
    nodes_version: Annotated[
        Count | UnsetType, Meta(description="Raised when an operator adds or removes a node.")
    ] = UNSET
    reason: str | UnsetType | None = UNSET


CALLS: Final = (
    Call(
        "getRetention", "GET", "/v1/retention",
        "How full the disk is, what is deleted next and when, and when sends will stop",
        Retention, "What is not known is null, with a reason.", (503,),
    ),
    Call(
        "getDrain", "GET", "/v1/drain", "Whether this broker group takes messages from producers",
        Draining, "", (503,),
    ),
    Call(
        "drain", "PUT", "/v1/drain",
        "Take no more messages from producers, so that consumers can empty this broker group",
        Draining, "Durable, also over a failover. Consumers, nacks, delayed deliveries and "
        "redrives to a group go on; a send is answered 403 `drained`.", (421, 503, 507),
    ),
    Call(
        "undrain", "DELETE", "/v1/drain", "Take messages from producers again",
        Draining, "", (421, 503, 507),
    ),
    Call(
        "getCluster", "GET", "/v1/cluster", "The nodes of this node's group, and its master",
        Cluster, "Any node answers. What is not known is null, with a reason; a standalone node "
        "has no group.", (),
    ),
)  # fmt: skip
