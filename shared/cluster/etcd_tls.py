"""TLS towards etcd, as the table ``[cluster]`` configures it. Used by ha and by ``doctor``."""

from __future__ import annotations

import ssl

from shared.cluster.config import ClusterConfig
from tidemark.errors import BadConfig


def etcd_tls(cluster: ClusterConfig) -> ssl.SSLContext | None:
    """Return the context for connections to etcd; None: its endpoints are plain HTTP.

    Reads the files of the settings. Blocks. Raises BadConfig.
    """
    if not any(endpoint.startswith("https:") for endpoint in cluster.etcd_endpoints):
        return None
    try:
        context = ssl.create_default_context(cafile=cluster.etcd_tls_ca_file)
        if cluster.etcd_tls_cert_file is not None:
            context.load_cert_chain(cluster.etcd_tls_cert_file, cluster.etcd_tls_key_file)
    except OSError as error:  # ssl.SSLError is one
        raise BadConfig(
            "cluster.etcd_tls_ca_file, etcd_tls_cert_file or etcd_tls_key_file cannot be used: "
            f"{error}. Nothing was started.",
            "Give the authority that signed etcd's certificates and, if etcd requires them, a "
            "certificate of a client with its key, as PEM.",
        ) from error
    return context
