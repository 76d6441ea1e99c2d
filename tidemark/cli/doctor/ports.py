"""Checks that a node's ports are free or used by its own services, and other replication ports.

It is useful only on the machine where the node runs or will run; addresses come from its settings.
"""

from __future__ import annotations

import errno
import http.client
import json
import socket
from collections.abc import Mapping
from typing import Any, Final

from shared.cluster.config import numbered
from tidemark.cli.doctor.findings import About, Check, Finding

CONNECT_S: Final = 2.0
ANSWER_SIZE_MAX: Final = 1 << 20
LOCAL_OF_ANY: Final = {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "::1"}


def checks(settings: Mapping[str, Mapping[str, Any]]) -> list[Check]:
    """Return one check per configured port; a port of 0 is chosen by the kernel and never used."""
    found = []
    for service, values in settings.items():
        for name, host, path in (
            ("port", "host", "/v1/route" if service == "names" else "/v1/cluster"),
            ("admin_port", "admin_host", "/live"),
        ):
            if values.get(name):
                place = (str(values[host]), int(values[name]))
                found.append(
                    Check(
                        f"ports.{service}",
                        f"{name} {place[1]}",
                        lambda s=service, p=place, u=path: [port(s, p, u)],  # type: ignore[misc]
                    )
                )
    return found


def port(service: str, place: tuple[str, int], path: str) -> Finding:
    """Check that the service can listen, or already listens. place: configured host and port."""
    host, number = place
    check, subject = f"ports.{service}", f"{host}:{number}"
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, number))
    except OSError as error:
        if error.errno == errno.EADDRINUSE and _is_held_by_node(host, number, path):
            return About(check, subject).ok("a Tidemark service listens there")
        return About(check, subject).error(
            "cannot-listen",
            f"{service} cannot listen there: {error.strerror}",
            "Stop what listens there (`ss -ltnp`), or choose another port or address.",
            value=number,
        )
    return About(check, subject).ok("free: the service does not run")


def replication_checks(settings: Mapping[str, Any]) -> list[Check]:
    """Return the checks for the other nodes' replication ports, which only the settings contain."""
    cluster = settings.get("cluster") or {}
    found = []
    for entry in numbered(cluster.get("nodes") or (), cluster.get("node_count") or 0):
        name, _, address = entry.partition("=")
        if name != cluster.get("node"):
            found.append(
                Check("nodes.replication", name, lambda n=name, a=address: [replication(n, a)])  # type: ignore[misc]
            )
    return found


def replication(name: str, address: str) -> Finding:
    """Check that a connection to a node's replication port can be made from here."""
    host, _, port = address.rpartition(":")
    check, problem = "nodes.replication", ""
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_S):
            pass
    except TimeoutError:
        problem = f"no answer within {CONNECT_S:.0f} s"
    except socket.gaierror:
        problem = f"the name {host} cannot be resolved here"
    except OSError as error:
        problem = str(error.strerror or error)
    if not problem:
        return About(check, name).ok(f"{address} accepts connections")
    return About(check, name).error(
        "doctor-unreachable",
        f"{address} cannot be reached from here ({socket.gethostname()}): {problem}",
        "This node cannot replicate from or to it: correct cluster.nodes, DNS or "
        "the network policy; or start it.",
        value=address,
    )


def _is_held_by_node(host: str, number: int, path: str) -> bool:
    """Whether the program that listens there answers like a Tidemark service."""
    connection = http.client.HTTPConnection(LOCAL_OF_ANY.get(host, host), number, timeout=CONNECT_S)
    try:
        connection.request("GET", path, headers={"Accept": "application/json"})
        response = connection.getresponse()
        value = json.loads(response.read(ANSWER_SIZE_MAX))
        return isinstance(value, dict) and not {"live", "nodes", "groups"}.isdisjoint(value)
    except (OSError, http.client.HTTPException, ValueError):
        return False
    finally:
        connection.close()
