"""Misbehaving clients: attacks on a broker, selected by name.

``python -m bench.bad_clients NAME --api PORT --admin PORT`` attacks until SIGTERM and prints the
number of attempts. ``attackable`` stores the data that the attacks need.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import itertools
import json
import signal
import socket
import threading
from collections.abc import Callable, Sequence
from typing import Final

import msgpack

import tidemark

HOST: Final = "127.0.0.1"
MIB: Final = 1 << 20
BAD: Final = "bad"
"""The topic that the attacks use."""
AT_ONCE: Final = 16
"""Number of connections of a flood."""
SETTINGS: Final = {"waiting_bytes_max": 128 * MIB, "connections_max": 300}
"""Settings of the attacked broker."""
GROWTH_MAX: Final = 192 * MIB
"""Limit of the broker's memory growth: half of waiting_bytes_max plus decoding one request."""
KEYS_MAX: Final = 1023
ALIKE: Final = ["".join(each) for each in itertools.product(("Aa", "BB"), repeat=9)]
"""Keys with equal hashes."""


def attackable(mq: tidemark.SyncClient) -> None:
    """Store keys of equal hash, 48 MiB of bodies that are long as JSON, and the key ``last``."""
    mq.create_topic(BAD, queues=1)
    for number in range(64):
        mq.send(BAD, b"%d" % number, keys=ALIKE[1:])
    for _ in range(16):
        mq.send(BAD, b"\x01" * (3 * MIB), keys=["large"])
    mq.send(BAD, b"last", keys=["last"])


class Attack:
    """Connections of the bad client, and a flag to stop."""

    def __init__(self, api: int, admin: int) -> None:
        self._ports = {"api": api, "admin": admin}
        self.stop = threading.Event()
        self.count = 0
        self._held: list[socket.socket] = []

    def connect(self, port: str = "api") -> socket.socket:
        """Open one more connection and keep it open."""
        made = socket.create_connection((HOST, self._ports[port]), timeout=60)
        self._held.append(made)
        return made

    def forget(self, count_max: int) -> None:
        """Close the oldest connections beyond count_max."""
        while len(self._held) > count_max:
            self._held.pop(0).close()

    def close(self) -> None:
        """Stop and close the open connections. Call it again after the attack has ended, because
        the attack may have opened another one."""
        self.stop.set()
        for each in list(self._held):
            each.close()

    def _ask(
        self, connection: http.client.HTTPConnection, method: str, path: str, body: bytes, kind: str
    ) -> int:
        self.count += 1
        try:
            connection.request(method, path, body or None, {"Content-Type": f"application/{kind}"})
            answer = connection.getresponse()
            answer.read()
        except (OSError, http.client.HTTPException):
            connection.close()  # the next request opens it again
            return 0
        return answer.status

    def flood(
        self,
        request: Callable[[int], tuple[str, str, bytes]],
        allowed: Sequence[int],
        at_once: int = AT_ONCE,
        kind: str = "json",
    ) -> None:
        """Send numbered requests concurrently without pauses. Raises OSError for other statuses."""
        numbers, unexpected = itertools.count(), list[int]()

        def run() -> None:
            connection = http.client.HTTPConnection(HOST, self._ports["api"], timeout=120)
            with contextlib.closing(connection):
                for number in numbers:
                    if self.stop.is_set() or unexpected:
                        return
                    status = self._ask(connection, *request(number), kind)
                    if status not in (*allowed, 0):
                        unexpected.append(status)

        threads = [threading.Thread(target=run) for _ in range(at_once)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if unexpected:
            raise OSError(f"answered with status {unexpected}")


MESSAGES: Final = f"/v1/topics/{BAD}/messages"
QUEUE: Final = f"/v1/topics/{BAD}/queues/0/messages?offset=64&max=64"
HEAD: Final = (f"POST {MESSAGES} HTTP/1.1\r\nHost: x\r\nContent-Length: 16777216\r\n\r\n").encode()


def silent_bodies(attack: Attack) -> None:
    """Announce bodies and never send them."""
    for _ in range(64):
        attack.connect().sendall(HEAD)
        attack.count += 1
    attack.stop.wait()


def half_bodies(attack: Attack) -> None:
    """Send half of each body."""
    while not attack.stop.is_set():
        with contextlib.suppress(OSError):
            attack.connect().sendall(HEAD + bytes(8 * MIB))
        attack.count += 1


def empty_maps(attack: Attack) -> None:
    """Send sixteen million messages in one body."""
    body = msgpack.packb({"messages": [{}] * (16 * MIB - 100)})
    attack.flood(lambda _: ("POST", MESSAGES, body), [413, 503], at_once=2, kind="msgpack")


def most_values(attack: Attack) -> None:
    """Send a JSON body with the maximum number of values, which is then rejected."""
    message = {"body_text": "x", "keys": ["k"] * 50, "no": 1}
    body = json.dumps({"messages": [message] * 4096}).encode()
    attack.flood(lambda _: ("POST", MESSAGES, body), [400, 413, 503], at_once=4)


def equal_hashes(attack: Attack) -> None:
    """Look up a missing key with the same hash as many existing ones."""
    attack.flood(lambda _: ("GET", f"{MESSAGES}?key={ALIKE[0]}", b""), [200, 503], at_once=4)


def repeats_of_equal_hashes(attack: Attack) -> None:
    """Repeat sends of a unique id that is not stored but has the hash of many stored ones."""
    messages = [{"body_text": "x", "unique_id": ALIKE[0]}]
    body = json.dumps({"messages": messages, "retry": True}).encode()
    attack.flood(lambda _: ("POST", MESSAGES, body), [200, 503], at_once=4)


def large_answers(attack: Attack) -> None:
    """Look up messages whose answers are long as JSON."""
    attack.flood(lambda _: ("GET", f"{MESSAGES}?key=large&max=64", b""), [200, 503], at_once=4)


def slow_readers(attack: Attack) -> None:
    """Pull long JSON answers without reading them."""
    for _ in range(32):
        attack.connect().sendall(f"GET {QUEUE} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        attack.count += 1
    attack.stop.wait()


def slow_raw_readers(attack: Attack) -> None:
    """Pull 32 MiB of raw records without reading them."""
    accept = "application/vnd.tidemark.records"
    for _ in range(64):
        request = f"GET {QUEUE} HTTP/1.1\r\nHost: x\r\nAccept: {accept}\r\n\r\n"
        attack.connect().sendall(request.encode())
        attack.count += 1
    attack.stop.wait()


def idle_connections(attack: Attack) -> None:
    """Open idle connections, first more than the limit, then one after another."""
    while not attack.stop.is_set():
        for port in ("api", "admin"):
            with contextlib.suppress(OSError):
                attack.connect(port)
            attack.count += 1
        attack.forget(1500)


def joins(attack: Attack) -> None:
    """Join one new group after another."""
    body = json.dumps({"subscriptions": [{"topic": BAD}]}).encode()
    attack.flood(lambda n: ("POST", f"/v1/groups/g{n}/members/m", body), [200, 503])


def topics(attack: Attack) -> None:
    attack.flood(lambda n: ("PUT", f"/v1/topics/flood{n}", b'{"queues": 1}'), [200, 503])


def keys(attack: Attack) -> None:
    """Send messages with the maximum number of keys, all new."""

    def request(number: int) -> tuple[str, str, bytes]:
        each = [f"{number:x}.{n}" for n in range(KEYS_MAX)]
        body = json.dumps({"messages": [{"body_text": "x", "keys": each}] * 8}).encode()
        return "POST", MESSAGES, body

    attack.flood(request, [200, 503], at_once=4)


ATTACKS: Final[dict[str, Callable[[Attack], None]]] = {
    each.__name__: each
    for each in (
        *(silent_bodies, half_bodies, empty_maps, most_values),
        *(equal_hashes, repeats_of_equal_hashes, large_answers),
        *(slow_readers, slow_raw_readers, idle_connections, joins, topics, keys),
    )
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=ATTACKS)
    parser.add_argument("--api", type=int, required=True)
    parser.add_argument("--admin", type=int, required=True)
    given = parser.parse_args()
    attack = Attack(given.api, given.admin)
    signal.signal(signal.SIGTERM, lambda *_: attack.close())
    worst = threading.Thread(target=ATTACKS[given.name], args=(attack,))
    worst.start()
    worst.join()
    attack.close()
    print(attack.count)


if __name__ == "__main__":
    main()
