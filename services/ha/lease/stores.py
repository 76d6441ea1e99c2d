"""Opens the lease store that is configured. Step after: ``lease_client``."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Final

from services.ha.lease.directory import DirectoryLease
from services.ha.lease.etcd import EtcdLease
from services.ha.lease.etcd_gateway import EtcdGateway, Login
from services.ha.lease.interface import LeaseStore
from shared.cluster.config import ClusterConfig
from shared.cluster.etcd_tls import etcd_tls
from tidemark.errors import BadConfig

KUBERNETES: Final = __name__.removesuffix("stores") + "kubernetes"
"""Imported only if configured: the client of the API is an extra dependency, and large."""


def open_store(cluster: ClusterConfig) -> LeaseStore:
    """Return the store of the group's lease, without a request to it.

    Raises BadConfig if the configured place cannot be reached from here.
    """
    match cluster.lease:
        case "directory":
            assert cluster.lease_dir is not None
            return DirectoryLease(cluster.lease_dir, cluster.lease_name)
        case "etcd":
            return _etcd(cluster)
        case "kubernetes":
            return _in_kubernetes(cluster)


def prepare(cluster: ClusterConfig) -> None:
    """Load the client library while the log is recovered: that of Kubernetes takes seconds to load
    on a slow machine. Blocks. Raises BadConfig."""
    if cluster.lease == "kubernetes":
        _kubernetes()


def check_files(cluster: ClusterConfig) -> None:
    """Read the files that the settings of the lease name. Blocks. Raises BadConfig."""
    etcd_tls(cluster)
    path = cluster.etcd_password_file
    try:
        if path is not None:
            path.read_text()
    except (OSError, ValueError) as error:
        raise BadConfig(
            f"cluster.etcd_password_file {path} cannot be read: {error}. Nothing was started.",
            "Write the password of cluster.etcd_user there, readable by the user of ha only.",
        ) from error


def _etcd(cluster: ClusterConfig) -> EtcdLease:
    login = None
    if cluster.etcd_password_file is not None:
        login = Login(cluster.etcd_user, cluster.etcd_password_file)
    gateway = EtcdGateway(
        cluster.etcd_endpoints,
        timeout_ms=cluster.time_rules.request_timeout_ms,
        tls=etcd_tls(cluster),
        login=login,
    )
    return EtcdLease(gateway, cluster.etcd_prefix + cluster.lease_name)


def _in_kubernetes(cluster: ClusterConfig) -> LeaseStore:
    module = _kubernetes()
    try:
        store: LeaseStore = module.KubernetesLease(
            cluster.lease_name,
            namespace=cluster.kubernetes_namespace,
            url=cluster.kubernetes_url,
            pod=cluster.node,
            lease_ms=cluster.time_rules.lease_ms,
            timeout_ms=cluster.time_rules.request_timeout_ms,
        )
    except (ValueError, OSError) as error:
        raise BadConfig(str(error), "Set cluster.kubernetes_url, or run it in a pod.") from error
    return store


def _kubernetes() -> ModuleType:
    try:
        return importlib.import_module(KUBERNETES)
    except ImportError as error:
        raise BadConfig(
            f'cluster.lease is "kubernetes", and {error.name} is not installed.',
            "Install tidemark-mq[k8s].",
        ) from error
