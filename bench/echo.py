"""Sends back all received bytes, one connection at a time: measures a loopback round trip.

``python -m bench.echo PORT``; run by ``latency``.
"""

from __future__ import annotations

import socket
import sys


def serve(port: int) -> None:
    with socket.create_server(("127.0.0.1", port)) as listener:
        while True:
            connection, _ = listener.accept()
            with connection:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                while data := connection.recv(65_536):
                    connection.sendall(data)


if __name__ == "__main__":
    serve(int(sys.argv[1]))
