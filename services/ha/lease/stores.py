"""Which place the settings keep the lease in. After: ``interface.carry_out``."""

from __future__ import annotations

from services.ha.lease.directory import DirectoryLease
from services.ha.lease.interface import LeaseStore
from shared.cluster.config import ClusterConfig
from tidemark.errors import BadConfig


def open_store(cluster: ClusterConfig) -> LeaseStore:
    """The store of the group's lease; nothing is asked of it yet.

    Raises BadConfig if the settings name a place that cannot be reached from here.
    """
    name = f"{cluster.name}-{cluster.group}"
    if cluster.lease_dir is not None:
        return DirectoryLease(cluster.lease_dir, name)
    try:
        # Only here: the API's client is an extra, and large.
        from services.ha.lease.kubernetes import KubernetesLease
    except ImportError as error:
        raise BadConfig(
            f'cluster.lease is "kubernetes", and {error.name} is not installed.',
            "Install tidemark[k8s].",
        ) from error
    try:
        return KubernetesLease(
            name,
            namespace=cluster.kubernetes_namespace,
            url=cluster.kubernetes_url,
            pod=cluster.node,
            lease_ms=cluster.time_rules.lease_ms,
            timeout_ms=cluster.time_rules.request_timeout_ms,
        )
    except (ValueError, OSError) as error:
        raise BadConfig(str(error), "Set cluster.kubernetes_url, or run it in a pod.") from error
