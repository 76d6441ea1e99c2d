"""Drills about untrusted peers: what a node's answer is taken for."""

from __future__ import annotations

import socket

from drills.families.intruders import CLOSED, SILENT, _answer
from drills.hostile_peer import HostilePeer


def test_silence_of_a_node_is_not_taken_for_a_closed_link() -> None:
    # A node that ignored an APPEND of an old epoch passed drill 33 with "the link was closed".
    with (
        socket.create_server(("127.0.0.1", 0)) as node,
        HostilePeer("127.0.0.1", node.getsockname()[1], timeout_s=0.1) as peer,
    ):
        assert _answer(peer) == SILENT
        node.accept()[0].close()
        assert _answer(peer) == CLOSED
