"""Sends on request: reads lines ``PORT COUNT``, writes ``done`` after COUNT answers.

It is a separate process, so that its work does not count as that of the measured broker.
"""

from __future__ import annotations

import sys

from bench.latency import HttpSocket
from bench.load import Shape, Template
from bench.servers import HOST, pin_to_load_core

TOPIC = "orders"


def main(messages: int) -> None:
    pin_to_load_core()
    template = Template(Shape(messages=messages), HOST, [(TOPIC, None)])
    connections: dict[int, HttpSocket] = {}
    for line in sys.stdin:
        port, count = map(int, line.split())
        if port not in connections:
            connections[port] = HttpSocket((HOST, port))
        connection = connections[port]
        for _ in range(count):
            connection.exchange(bytes(template.next(0)))
        print("done", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
