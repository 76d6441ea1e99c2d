"""The command line of an etcd whose members share a machine: for development, tests and drills."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

PROGRAM: Final = "etcd"


class EtcdMember(NamedTuple):
    """One member of an etcd cluster."""

    name: str
    data_dir: Path
    client_url: str
    peer_url: str


def etcd_command(member: EtcdMember, members: Sequence[EtcdMember]) -> list[str]:
    """Return the command that runs a member. members: all of its cluster, itself included."""
    cluster = ",".join(f"{each.name}={each.peer_url}" for each in members)
    return [
        PROGRAM,
        *("--name", member.name, "--data-dir", str(member.data_dir)),
        *("--listen-client-urls", member.client_url, "--advertise-client-urls", member.client_url),
        *("--listen-peer-urls", member.peer_url, "--initial-advertise-peer-urls", member.peer_url),
        *("--initial-cluster", cluster, "--logger", "zap", "--log-level", "warn"),
    ]
