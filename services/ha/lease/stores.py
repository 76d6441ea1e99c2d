"""Opens the lease store that is configured. Step after: ``lease_client``."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Final

from services.ha.lease.directory import DirectoryLease
from services.ha.lease.interface import LeaseStore
from shared.cluster.config import ClusterConfig
from tidemark.errors import BadConfig

KUBERNETES: Final = __name__.removesuffix("stores") + "kubernetes"
"""Imported only if configured: the client of the API is an extra dependency, and large."""


def open_store(cluster: ClusterConfig) -> LeaseStore:
    """Return the store of the group's lease, without a request to it.

    Raises BadConfig if the configured place cannot be reached from here.
    """
    name = f"{cluster.name}-{cluster.group}"
    if cluster.lease_dir is not None:
        return DirectoryLease(cluster.lease_dir, name)
    module = _kubernetes()
    try:
        store: LeaseStore = module.KubernetesLease(
            name,
            namespace=cluster.kubernetes_namespace,
            url=cluster.kubernetes_url,
            pod=cluster.node,
            lease_ms=cluster.time_rules.lease_ms,
            timeout_ms=cluster.time_rules.request_timeout_ms,
        )
    except (ValueError, OSError) as error:
        raise BadConfig(str(error), "Set cluster.kubernetes_url, or run it in a pod.") from error
    return store


def prepare(cluster: ClusterConfig) -> None:
    """Load the client library while the log is recovered: that of Kubernetes takes seconds to load
    on a slow machine. Blocks. Raises BadConfig."""
    if cluster.lease_dir is None:
        _kubernetes()


def _kubernetes() -> ModuleType:
    try:
        return importlib.import_module(KUBERNETES)
    except ImportError as error:
        raise BadConfig(
            f'cluster.lease is "kubernetes", and {error.name} is not installed.',
            "Install tidemark[k8s].",
        ) from error
