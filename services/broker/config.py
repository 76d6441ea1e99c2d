"""Settings of the broker: one frozen dataclass, from TOML, environment and command line.

The table ``[store]`` and the paths must be equal in the settings of reput on the same node.
Settings that determine the format of files are recorded in the store and compared at start.
"""

from __future__ import annotations

import dataclasses
import functools
import ipaddress
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Literal

from services.broker.retention_policy import Policy, parse_hours
from shared.cluster.config import ClusterConfig
from shared.cluster.routes import URL_PATTERN
from shared.files.store_config import LocalStoreConfig, StoreConfig
from shared.metrics.bounds import GROUPS_MAX, PAIRS_MAX, TOPICS_MAX, Limits
from shared.runtime.config import Ruled, setting, unless_read
from shared.runtime.run_dir import usable_run_dir
from tidemark.formats.hosts import Host

ENV_PREFIX: Final = "TIDEMARK_BROKER_"


NAMES_MAX: Final = 16
"""Name services with which one broker registers."""
TELEMETRY_PERIOD_MIN_S: Final = 1.0
COPIED_SIZE_MAX: Final = 7 << 20
"""Largest body [bytes] in a group: with its properties it fits into the window to a slave."""


@dataclasses.dataclass(frozen=True)
class NamesSettings(Ruled):
    """The name services with which this broker registers; the table ``[names]``."""

    urls: tuple[str, ...] = ()
    """URLs of all of them; clients get them with every route. Empty: there are none."""
    api: str = setting(
        "", says="URL of this broker for clients, on a standalone node; default: host and port"
    )
    secret_file: Path | None = None
    """File with the secret that registrations are signed with. Default: cluster.secret_file; on a
    standalone node without either, registrations are not signed."""

    def broken_rules(self) -> Iterator[str]:
        """Return the violated rules between fields."""
        for name, url in (*(("urls", each) for each in self.urls), ("api", self.api)):
            if url and not re.match(URL_PATTERN, url):
                yield f"names.{name}: {url!r} is not a URL like http://names-1:9870"
        if len(self.urls) > NAMES_MAX:
            yield f"names.urls has {len(self.urls)} URLs, {NAMES_MAX} are allowed"


@dataclasses.dataclass(frozen=True)
class BrokerConfig(Ruled):
    """Settings of one broker."""

    store_dir: Path = Path("data")
    """The store directory, on a local disk and never on a network file system."""
    run_dir: Path | None = None
    """Directory of sockets, and of the positions page if the store is not writable. Default:
    STORE/run."""
    store: StoreConfig = dataclasses.field(default_factory=StoreConfig)
    cluster: ClusterConfig = dataclasses.field(default_factory=ClusterConfig)
    """The replication group of this node; ha has the same table. Empty: a standalone node."""
    names: NamesSettings = dataclasses.field(default_factory=NamesSettings)

    host: str = setting("127.0.0.1", says="0.0.0.0 opens the API to everybody who reaches the port")
    port: int = setting(8080, minimum=0, maximum=65_535, says="0 takes a free one")
    admin_host: str = setting("127.0.0.1", says="probes, metrics")
    admin_port: int = setting(8081, minimum=0, maximum=65_535, says="0 takes a free one")
    advertised_host: str = setting(
        "", says="IP address that records carry as store host; default: host, or 127.0.0.1"
    )
    log_level: Literal["debug", "info", "warning", "error"] = "info"

    auto_create_topics: bool = setting(
        False, says="a misspelt topic makes a new one instead of an error"
    )
    auto_create_queues: int = setting(4, unit="queues", minimum=1, maximum=1024)
    auto_create_groups: bool = setting(
        True, says="false: a group has to be made before its first member joins"
    )
    topic_series_max: int = setting(
        TOPICS_MAX,
        unit="topics",
        minimum=1,
        maximum=100_000,
        says="topics with metrics of their own, the most active; the rest is summed under _other. "
        "8 series each: large ones make scrapes slow",
    )
    group_series_max: int = setting(
        GROUPS_MAX,
        unit="groups",
        minimum=1,
        maximum=100_000,
        says="the same of groups; 40 series each, 2 without group_delay_histograms",
    )
    pair_series_max: int = setting(
        PAIRS_MAX,
        unit="pairs",
        minimum=1,
        maximum=100_000,
        says="the same of pairs of a group and a topic; 23 series each",
    )
    queue_series_max: int = setting(
        20_000,
        unit="series",
        minimum=0,
        maximum=1_000_000,
        says="series by queue, 2 for each queue and 3 for each group on it, those with members and "
        "lag first; 0: none. Small: lag is not known by queue, large: slow scrapes",
    )
    telemetry_period_s: float = setting(
        0.0,
        unit="s",
        minimum=0.0,
        maximum=3600.0,
        says="time between two snapshots of all positions in the telemetry journal, 15 for lag "
        "analytics; 0: there is none. Small: it fills the log, large: stalls are noticed late",
    )
    group_delay_histograms: bool = setting(
        True, says="false: no histograms of delivery and consume delay, 38 series for each group"
    )
    message_size_max: int = setting(
        4 << 20, unit="bytes", minimum=10, maximum=64 << 20, says="body of one message"
    )
    request_size_max: int = setting(
        16 << 20,
        unit="bytes",
        minimum=1024,
        maximum=1 << 30,
        says="one HTTP body; large ones hold up the others while they are decoded",
    )
    waiting_bytes_max: int = setting(
        256 << 20,
        unit="bytes",
        minimum=1 << 20,
        says="request bodies in memory at a time, and as much of large answers that clients have "
        "not taken; beyond, callers get 503 overloaded; one address may have half",
    )
    held_pulls_max: int = setting(
        1024,
        unit="pulls",
        minimum=0,
        says="long polls at a time; beyond, they are answered at once",
    )
    connections_max: int = setting(
        2048, unit="connections", minimum=1, says="each takes a descriptor and some memory"
    )
    read_timeout_s: float = setting(
        30.0, unit="s", minimum=0.1, says="for a request to arrive; small: slow links fail"
    )
    idle_timeout_s: float = setting(
        75.0, unit="s", minimum=1.0, says="an unused connection is closed; keep it above proxies'"
    )
    write_timeout_s: float = setting(
        30.0, unit="s", minimum=0.1, says="for a client to take any byte of an answer"
    )

    flush_interval_ms: int = setting(
        5,
        unit="ms",
        minimum=0,
        maximum=1000,
        says="longest time that bytes without a waiting send stay unflushed",
    )
    interval_flush_ms: int = setting(
        500, unit="ms", minimum=1, says='flushInterval, only with visible_after = "written"'
    )
    interval_flush_pages: int = setting(
        4, unit="pages", minimum=0, says='least pages to flush, only with visible_after = "written"'
    )
    interval_flush_thorough_ms: int = setting(
        10_000, unit="ms", minimum=1, says='flush everything, only with visible_after = "written"'
    )
    write_buffer_pool_size: int = setting(
        0,
        unit="bytes",
        minimum=0,
        maximum=1 << 30,
        says="memory in which records wait to be put into the log together; 0: each request's go "
        "into the log at once; a small one fills up and commits inside sends, a large one makes "
        "commits so long that sends wait for them",
    )
    commit_interval_ms: int = setting(
        200,
        unit="ms",
        minimum=1,
        maximum=60_000,
        says="time after which pooled records without a waiting send are written into the log; "
        "small: little is batched, large: more is lost with the process",
    )
    commit_least_pages: int = setting(
        4,
        unit="pages",
        minimum=0,
        maximum=1 << 18,
        says="fewer wait for the thorough commit; 0: never, large: always",
    )
    commit_thorough_ms: int = setting(
        200,
        unit="ms",
        minimum=1,
        maximum=60_000,
        says="time since the last commit after which everything pooled goes into the log; "
        "large: more is lost with the process, and consumers see it later",
    )
    warm_up_files: bool = setting(
        False,
        says="true: new log files are written full of zeros before they are used, which costs one "
        "more write of every byte; false: each flush also notes which blocks it was the first to "
        "use",
    )
    lock_files_memory: bool = setting(
        False,
        says="true: log files in use stay in memory, up to three of them, which RLIMIT_MEMLOCK "
        "and a container's limit have to allow; false: on a machine short of memory the log's end "
        "may be read back from disk",
    )
    prepare_wait_s: float = setting(
        5.0, unit="s", minimum=0.0, says="longest wait of a send for the next log file"
    )
    reserve_bytes: int = setting(
        16 << 20,
        unit="bytes",
        minimum=0,
        says="log kept for the broker's own records when the disk is full",
    )
    dispatch_lag_max: int = setting(
        1 << 30, unit="bytes", minimum=1 << 20, says="sends get 503 once more is undispatched"
    )
    deliver_delayed: bool = setting(
        True,
        says="false: delayed messages keep waiting, and their log files are kept: for inspecting a "
        "copy of a store unchanged",
    )
    retention_age_ms: int = setting(
        259_200_000,
        unit="ms",
        minimum=1000,
        says="age since the last write after which log files expire; small: slow consumers lose "
        "messages, large: the disk fills",
    )
    delete_when: str = setting(
        "04", says="hours of the day, local time, joined by ;, in which expired files go"
    )
    retention_size_max: int = setting(
        0, unit="bytes", minimum=0, says="log beyond is deleted, oldest first; 0: no bound"
    )
    disk_used_percent_max: int = setting(
        75, unit="percent", minimum=10, maximum=95, says="above, expired files go at any hour"
    )
    disk_forcible_percent: int = setting(
        85, unit="percent", minimum=30, maximum=85, says="above, files go whatever their age"
    )
    disk_warning_percent: int = setting(
        90, unit="percent", minimum=35, maximum=90, says="above, sends are refused"
    )
    clean_file_forcibly: bool = setting(
        True, says="false: a full disk refuses sends and keeps what is young"
    )
    retention_warn_ms: int = setting(
        3_600_000,
        unit="ms",
        minimum=0,
        says="how long before a deletion the log names groups that would lose messages",
    )
    clock_step_max_ms: int = setting(
        10_000,
        unit="ms",
        minimum=0,
        says="for steps back of the clock up to this, store times stay where they are",
    )

    def broken_rules(self) -> Iterator[str]:
        """Return the violated rules between fields."""
        if self.advertised_host:
            yield from unless_read(
                "advertised_host", lambda: ipaddress.ip_address(self.advertised_host)
            )
        yield from unless_read("delete_when", lambda: parse_hours(self.delete_when))
        yield from self.store.broken_rules()
        yield from confirmed_or_alone(self.store, self.cluster)
        if self.cluster.grouped and self.message_size_max > COPIED_SIZE_MAX:
            yield (
                f"message_size_max is {self.message_size_max}; in a group {COPIED_SIZE_MAX} is the "
                "limit: a slave acknowledges whole records, and takes 8 MiB ahead of them"
            )
        if 0 < self.telemetry_period_s < TELEMETRY_PERIOD_MIN_S:
            yield (
                f"telemetry_period_s is {self.telemetry_period_s}; give 0, or at least "
                f"{TELEMETRY_PERIOD_MIN_S:g}: samples are not taken more often"
            )
        if self.request_size_max < self.message_size_max:
            yield (
                f"request_size_max ({self.request_size_max}) is below message_size_max "
                f"({self.message_size_max}): the largest message could not be sent"
            )

    @functools.cached_property
    def sockets_dir(self) -> Path:
        """Directory of this node's doorbell sockets."""
        return usable_run_dir(self.run_dir or self.store_dir / "run")

    @property
    def series_limits(self) -> Limits:
        """Limits of the numbers of topics, groups and pairs with their own series."""
        return Limits(self.topic_series_max, self.pair_series_max, self.group_series_max)

    @property
    def reserve(self) -> int:
        """Bytes of log reserved for the broker's own records; at most a quarter of a log file."""
        return min(self.reserve_bytes, self.store.commit_log_file_size // 4)

    @property
    def retention_policy(self) -> Policy:
        """Rules for the deletion of log files."""
        return Policy(
            self.retention_age_ms,
            parse_hours(self.delete_when),
            self.retention_size_max,
            self.disk_used_percent_max,
            self.disk_forcible_percent,
            self.disk_warning_percent,
            self.clean_file_forcibly,
        )

    def own_api(self, port: int) -> str:
        """Return the URL under which clients reach this broker. port: that of the API."""
        if self.cluster.grouped:
            return self.cluster.own.api
        if self.names.api:
            return self.names.api
        host = self.advertised_host or self.host
        host = {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "::1"}.get(host, host)
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    def store_host(self, port: int) -> Host:
        """Return the address that is stored in records and message ids."""
        for text in (self.advertised_host, self.host):
            try:
                address = ipaddress.ip_address(text)
            except ValueError:
                continue
            if not address.is_unspecified:
                return Host(address.packed, port)
        return Host(ipaddress.ip_address("127.0.0.1").packed, port)


def confirmed_or_alone(store: StoreConfig, cluster: ClusterConfig) -> Iterator[str]:
    """Check that ``visible_after`` is "confirmed" if and only if the node is in a group.

    On a standalone node no offset would be confirmed. In a group with another value, consumers
    would see messages that a failover can lose.
    """
    confirmed = store.visible_after == "confirmed"
    if confirmed != cluster.grouped:
        yield (
            f'store.visible_after is "{store.visible_after}", and '
            + (
                'a node of a group (cluster.nodes) needs "confirmed"'
                if cluster.grouped
                else "cluster.nodes is empty: a standalone node confirms nothing"
            )
        )


@dataclasses.dataclass(frozen=True)
class LocalBrokerConfig(BrokerConfig):
    """The profile ``local``: different defaults; every setting can still be changed."""

    store: LocalStoreConfig = dataclasses.field(default_factory=LocalStoreConfig)
    auto_create_topics: bool = True
