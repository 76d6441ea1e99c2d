"""Which place the settings keep the lease in. After: ``interface.carry_out``."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Final

from services.ha.lease.directory import DirectoryLease
from services.ha.lease.interface import LeaseStore
from shared.cluster.config import ClusterConfig
from tidemark.errors import BadConfig

KUBERNETES: Final = __name__.removesuffix("stores") + "kubernetes"
"""Imported only where the settings ask for it: the API's client is an extra, and large."""


def open_store(cluster: ClusterConfig) -> LeaseStore:
    """The store of the group's lease; nothing is asked of it yet.

    Raises BadConfig if the settings name a place that cannot be reached from here.
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
    """Load what the lease needs, which takes seconds of a slow machine for a client of Kubernetes:
    while the log is recovered nobody waits for it. Blocks. Raises BadConfig.
    """
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
