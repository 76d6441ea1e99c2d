"""One connection to a peer."""

from __future__ import annotations

import asyncio
from typing import cast
from unittest.mock import Mock

from services.ha.shell.link import Link
from services.ha.shell.links import Links
from services.ha.wire.handshake import NONCE_SIZE, Accepting, Identity

OWN = Identity("cluster", "g0", "a", "1" * 32, 1 << 30)


def test_what_waits_for_a_peer_that_has_closed_is_dropped() -> None:
    # 1. Bytes for a peer wait, and the network no longer takes them. 2. The peer closes. 3. The
    # transport would wait for the peer to take the bytes, and the link would not end.
    owner, transport = Mock(spec=Links), Mock(spec=asyncio.Transport)
    transport.get_write_buffer_size.return_value = 0
    proof = Accepting(OWN, accepted=[b"s" * 32], nonce=bytes(NONCE_SIZE), nodes=["a", "b"])
    link = Link(1, cast(Links, owner), proof, node=None, buffer_max=1000)
    link.connection_made(transport)
    assert not link.eof_received()
    transport.abort.assert_called_once_with()
    link.connection_lost(None)
    owner.lost.assert_called_once_with(link, "closed by the peer")
