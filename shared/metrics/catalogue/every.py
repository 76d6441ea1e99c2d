"""Every process. Pure.

The help texts of ``process_*`` and ``python_info`` are those of the collectors of
``prometheus_client``, which export them; a test compares them.
"""

from __future__ import annotations

from typing import Final

from shared.metrics.family import counter, declared, gauge

# One family is one row of a table.
# fmt: off
NODE_INFO: Final = gauge("tidemark_node_info{version,python,wire_version,store_format}", "–",
    "Always 1; the labels are the versions that run here",
    alert="two versions on one node for longer than a roll-out")
PROCESS_ANONYMOUS_MEMORY_BYTES: Final = gauge("tidemark_process_anonymous_memory_bytes", "bytes",
    "Anonymous resident memory. Mapped files, which the kernel can reclaim, are not included",
    title="Anonymous memory", alert="steady growth over days")
PROCESS_MAPPINGS: Final = gauge("tidemark_process_mappings", "mappings",
    "Memory mappings, bounded by `mapped_files_max` and `queue_files_mapped_max`",
    title="Memory mappings", alert="more than half of `vm.max_map_count`")
PROCESS_RESIDENT_MEMORY_BYTES: Final = gauge("process_resident_memory_bytes", "bytes",
    "Resident memory size in bytes.",
    title="Resident memory")
PROCESS_VIRTUAL_MEMORY_BYTES: Final = gauge("process_virtual_memory_bytes", "bytes",
    "Virtual memory size in bytes.")
PROCESS_OPEN_FDS: Final = gauge("process_open_fds", "descriptors",
    "Number of open file descriptors.",
    alert="above 80 % of `process_max_fds`")
PROCESS_MAX_FDS: Final = gauge("process_max_fds", "descriptors",
    "Maximum number of open file descriptors.")
PROCESS_CPU_SECONDS_TOTAL: Final = counter("process_cpu_seconds_total", "s",
    "Total user and system CPU time spent in seconds.",
    title="Processor", alert="near 1 for the broker, whose loop is one thread: it limits the node")
PROCESS_START_TIME_SECONDS: Final = gauge("process_start_time_seconds", "s",
    "Start time of the process since unix epoch in seconds.")
PYTHON_INFO: Final = gauge("python_info{version,implementation,major,minor,patchlevel}", "–",
    "Python platform information")
UP_SINCE_TIMESTAMP_SECONDS: Final = gauge("tidemark_up_since_timestamp_seconds", "s",
    "Start time of the process: after a change counters begin at 0",
    title="Running since")
READY: Final = gauge("tidemark_ready", "–",
    "1 while `/ready` answers 200; otherwise it lists the reasons",
    title="Ready", alert="0 for longer than a start takes")
TELEMETRY_SERIES_DROPPED_TOTAL: Final = counter(
    "tidemark_telemetry_series_dropped_total{family}", "series",
    "Label sets that were folded into `_other` at a bound",
    title="Series beyond a bound", alert="any: check the bound, and which client creates the names")
# fmt: on

EVERY: Final = declared(globals())
