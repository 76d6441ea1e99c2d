"""A real etcd for tests: on this machine, or the test is skipped; CI requires it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from drills.etcd_cluster import REMEDY, EtcdCluster
from drills.namespaces import LOOPBACK, Host
from shared.cluster.local_etcd import PROGRAM


def local_etcd(
    directory: Path, members: int = 1, *, scheme: str = "http", options: Sequence[str] = ()
) -> EtcdCluster:
    """Return an etcd with that many members on the loopback; skip the test if none is installed."""
    require_etcd()
    hosts = [Host(f"e{number}", LOOPBACK, None) for number in range(members)]
    return EtcdCluster(directory, hosts, scheme=scheme, options=options)


def require_etcd() -> None:
    """Skip the test if etcd is not installed; fail where everything is required."""
    if shutil.which(PROGRAM) is None:
        reason = f"{PROGRAM} is not installed: {REMEDY}"
        if os.environ.get("TIDEMARK_REQUIRE_ALL") == "1":
            pytest.fail(reason)
        pytest.skip(reason)
