"""Builds the replica's setup, the credentials and TLS from the settings.

Step before: ``config``, whose rules between fields hold. Step after: ``service`` runs the parts.
"""

from __future__ import annotations

import secrets
import ssl
from typing import Any, Final

from services.ha.config import HaConfig
from services.ha.core.setup import Setup
from services.ha.lease.directory import size_max
from services.ha.shell.links import Credentials
from services.ha.shell.secret_files import SecretFiles
from shared.runtime.clock import boot_id
from tidemark.errors import BadConfig

PROCESS_SIZE: Final = 8
UNKNOWN: Final = (
    *("role", "state", "incarnation", "in_sync", "log_end", "durable_end", "confirm"),
    *("lag_bytes", "lag_ms", "seen_ms_ago"),
)
"""Fields of a node in ``GET /v1/cluster``, besides its addresses."""


def load_credentials(config: HaConfig) -> Credentials:
    """Read the files that the settings name. Blocks. Raises BadConfig."""
    return Credentials(secret_files(config).read(), tls_of(config))


def secret_files(config: HaConfig) -> SecretFiles:
    """Return the files of the group's secret."""
    assert config.cluster.secret_file is not None, "the settings of a group were checked"
    return SecretFiles(config.cluster.secret_file)


def setup_from(config: HaConfig) -> Setup:
    """Return the input of the replica; its process id is new with every call."""
    cluster = config.cluster
    return Setup(
        cluster=cluster.name,
        group=cluster.group,
        own=cluster.own,
        nodes=cluster.replicas,
        min_in_sync=cluster.least_in_sync,
        times=cluster.time_rules,
        file_size=config.store.commit_log_file_size,
        process=secrets.token_hex(PROCESS_SIZE),
        boot=boot_id(),
        sets_min_in_sync=cluster.min_in_sync is not None,
        lease_size_max=None if cluster.lease_dir is None else size_max(cluster.lease_dir),
    )


def status_before(setup: Setup, state: str) -> dict[str, Any]:
    """Return the answer to ``GET /v1/cluster`` while this node recovers its log."""
    reason = f"{setup.own.name} is {state}"
    unknown = dict.fromkeys(UNKNOWN)
    return {
        "cluster": setup.cluster,
        "group": setup.group,
        "epoch": None,
        "master": None,
        "min_in_sync": setup.min_in_sync,
        "paused": None,
        "lease": None,
        "nodes": [
            {**unknown, "node": node.name, "api": node.api, "admin": node.admin, "reason": reason}
            for node in setup.nodes
        ],
        "history": [],
        "alarms": [],
        "reason": reason,
    }


def tls_of(config: HaConfig) -> tuple[ssl.SSLContext, ssl.SSLContext] | None:
    """Return the contexts to accept and to connect with; None without TLS. Blocks. Raises
    BadConfig.

    Names are not compared with certificates: the shared secret authenticates the peer.
    """
    cluster = config.cluster
    if cluster.tls_cert_file is None or cluster.tls_key_file is None:
        return None
    accepting = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    connecting = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    connecting.check_hostname = False
    try:
        for context in (accepting, connecting):
            context.minimum_version = ssl.TLSVersion.TLSv1_3
            context.verify_mode = ssl.CERT_REQUIRED
            context.load_cert_chain(cluster.tls_cert_file, cluster.tls_key_file)
            context.load_verify_locations(cluster.tls_ca_file)
    except OSError as error:  # ssl.SSLError is one
        raise BadConfig(
            f"cluster.tls_cert_file, tls_key_file or tls_ca_file cannot be used: {error}. "
            "Nothing was started.",
            "Give a certificate, its key and the authority that signed those of all nodes, as PEM.",
        ) from error
    return accepting, connecting
