"""Mutual TLS between the nodes: bytes are unreadable, a foreign certificate is refused."""

from __future__ import annotations

import contextlib
import socket
import ssl
from pathlib import Path
from typing import Final

from tests.processes.test_replication import REPLICATED, make_topic, send_acked
from tests.support import certificates
from tests.support.certificates import Certificate
from tests.support.cluster import Cluster

END_TIMEOUT_S: Final = 60.0


def heard_in_clear(address: tuple[str, int]) -> bytes:
    """All that the port sends to a plain connection until it closes that. Raises TimeoutError."""
    heard = bytearray()
    with socket.create_connection(address, timeout=END_TIMEOUT_S) as connection:
        connection.sendall(b"not a TLS record")
        with contextlib.suppress(ConnectionError):  # a close like any other
            while data := connection.recv(4096):
                heard += data
    return bytes(heard)


def heard_through_tls(address: tuple[str, int], made: Certificate | None) -> bytes:
    """The first bytes that it sends for that certificate. Raises ssl.SSLError if it is refused."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if made is not None:
        context.load_cert_chain(made.certificate, made.key)
    with (
        socket.create_connection(address, timeout=END_TIMEOUT_S) as connection,
        context.wrap_socket(connection) as secured,
    ):
        return secured.recv(4096)


def test_nodes_replicate_through_mutual_tls(tmp_path: Path) -> None:
    made, foreign = certificates.make(tmp_path, "own"), certificates.make(tmp_path, "foreign")
    with Cluster(tmp_path / "cluster", cluster=made.settings()) as cluster:
        cluster.start()
        master = cluster.wait_master()
        cluster.wait_in_sync()
        make_topic(cluster, master)
        assert send_acked(cluster, master, "secured") == REPLICATED
        address = (cluster.hosts[master], cluster.ports[master]["replication"])
        assert heard_in_clear(address) == b""
        assert b"tidemark" in heard_through_tls(address, made)  # the challenge
        for stranger in (None, foreign):
            try:
                assert heard_through_tls(address, stranger) == b""
            except (ssl.SSLError, ConnectionError):
                continue
        assert send_acked(cluster, master, "still") == REPLICATED
        lines = cluster.nodes[master].log_text("ha")
        assert "Traceback" not in lines
        assert lines.count('"event": "connection-error"') <= 1
        cluster.compare_logs()
