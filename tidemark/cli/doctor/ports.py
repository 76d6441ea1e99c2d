"""The ports of a node's services: free, or taken by the service itself.

Only on the machine where the node runs, or is to run; addresses are those of its settings.
"""

from __future__ import annotations

import errno
import http.client
import json
import socket
from collections.abc import Mapping
from typing import Any, Final

from tidemark.cli.doctor.findings import Check, Finding, Level

CONNECT_S: Final = 2.0
ANSWER_SIZE_MAX: Final = 1 << 20
LOCAL_OF_ANY: Final = {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "::1"}


def checks(settings: Mapping[str, Mapping[str, Any]]) -> list[Check]:
    """One per port that a service's settings name; 0 is the kernel's choice, and never taken."""
    found = []
    for service, values in settings.items():
        for name, host, path in (
            ("port", "host", "/v1/cluster"),
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
    """Whether the service could listen there, or does. place: host and port of its settings."""
    host, number = place
    check, subject = f"ports.{service}", f"{host}:{number}"
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, number))
    except OSError as error:
        if error.errno == errno.EADDRINUSE and _is_ours(host, number, path):
            return Finding(check, Level.OK, subject, "a service of ours listens there")
        return Finding(
            check,
            Level.ERROR,
            subject,
            f"{service} cannot listen there: {error.strerror}",
            value=number,
            code="cannot-listen",
            remedy="Stop what listens there (`ss -ltnp`), or choose another port or address.",
        )
    return Finding(check, Level.OK, subject, "free: the service does not run")


def _is_ours(host: str, number: int, path: str) -> bool:
    """Whether what listens there answers as a service of ours does."""
    connection = http.client.HTTPConnection(LOCAL_OF_ANY.get(host, host), number, timeout=CONNECT_S)
    try:
        connection.request("GET", path, headers={"Accept": "application/json"})
        response = connection.getresponse()
        value = json.loads(response.read(ANSWER_SIZE_MAX))
        return isinstance(value, dict) and not {"live", "nodes"}.isdisjoint(value)
    except (OSError, http.client.HTTPException, ValueError):
        return False
    finally:
        connection.close()
