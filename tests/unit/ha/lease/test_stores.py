"""The configured place of the lease."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import pytest

from services.ha.lease.directory import DirectoryLease
from services.ha.lease.etcd import EtcdLease
from services.ha.lease.kubernetes import KubernetesLease
from services.ha.lease.stores import check_files, open_store
from shared.cluster.config import ClusterConfig
from tidemark.errors import BadConfig


@pytest.fixture
def in_directory(tmp_path: Path) -> ClusterConfig:
    return ClusterConfig(
        node="a",
        nodes=("a=127.0.0.1:1", "b=127.0.0.1:2"),
        api=("a=http://a", "b=http://b"),
        admin=("a=http://a", "b=http://b"),
        secret_file=tmp_path / "secret",
        lease_dir=tmp_path,
    )


@pytest.fixture
def in_kubernetes(in_directory: ClusterConfig) -> ClusterConfig:
    return dataclasses.replace(
        in_directory, lease="kubernetes", lease_dir=None, kubernetes_url="http://127.0.0.1:1"
    )


@pytest.fixture
def in_etcd(in_directory: ClusterConfig) -> ClusterConfig:
    return dataclasses.replace(
        in_directory, lease="etcd", lease_dir=None, etcd_endpoints=("https://127.0.0.1:1",)
    )


def test_a_directory_or_etcd_or_an_api_server(
    in_directory: ClusterConfig, in_etcd: ClusterConfig, in_kubernetes: ClusterConfig
) -> None:
    assert isinstance(open_store(in_directory), DirectoryLease)
    assert isinstance(open_store(in_etcd), EtcdLease)
    assert isinstance(open_store(in_kubernetes), KubernetesLease)


def test_files_of_etcd_that_cannot_be_read_are_named_before_the_start(
    in_etcd: ClusterConfig, tmp_path: Path
) -> None:
    check_files(in_etcd)
    missing = tmp_path / "missing"
    with pytest.raises(BadConfig, match="etcd_tls_ca_file"):
        check_files(dataclasses.replace(in_etcd, etcd_tls_ca_file=missing))
    with pytest.raises(BadConfig, match="etcd_tls_cert_file"):
        check_files(
            dataclasses.replace(in_etcd, etcd_tls_cert_file=missing, etcd_tls_key_file=missing)
        )
    with pytest.raises(BadConfig, match=f"etcd_password_file {missing} cannot be read"):
        check_files(dataclasses.replace(in_etcd, etcd_user="ha", etcd_password_file=missing))


def test_without_the_extra_it_says_what_to_install(
    in_kubernetes: ClusterConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "services.ha.lease.kubernetes", raising=False)
    monkeypatch.setitem(sys.modules, "kubernetes_asyncio", None)
    with pytest.raises(BadConfig, match=r"Install tidemark-mq\[k8s\]"):
        open_store(in_kubernetes)


def test_without_an_address_outside_of_a_pod_it_says_what_is_missing(
    in_kubernetes: ClusterConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(BadConfig, match="KUBERNETES_SERVICE_HOST"):
        open_store(dataclasses.replace(in_kubernetes, kubernetes_url=""))
