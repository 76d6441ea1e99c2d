"""A server that sends the same bytes of a mapped file for every request, as a baseline of loopback
TCP.

``python -m bench.canned PORT FILE``: FILE contains a whole HTTP answer. One blocking thread serves
each connection; the bytes of one ``recv`` count as one request. Run by ``pull``.
"""

from __future__ import annotations

import mmap
import socket
import sys
import threading
from pathlib import Path


def serve(port: int, path: Path) -> None:
    with path.open("rb") as file:
        answer = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    listener = socket.create_server(("127.0.0.1", port))
    while True:
        connection, _ = listener.accept()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        threading.Thread(target=_answer, args=(connection, answer), daemon=True).start()


def _answer(connection: socket.socket, answer: memoryview) -> None:
    with connection:
        try:
            while connection.recv(4096):
                connection.sendall(answer)
        except ConnectionError:
            return


if __name__ == "__main__":
    serve(int(sys.argv[1]), Path(sys.argv[2]))
