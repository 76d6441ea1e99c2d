"""Tests in separate processes, because a process stays in the namespaces that it creates."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

# Packets over a cut link are dropped silently, so a timeout of one second is sufficient.
PROGRAM = """
import socket, subprocess, sys, threading
from drills.namespaces import CLIENTS, Namespaces, NoNamespaces
try:
    network = Namespaces()
except NoNamespaces as error:
    sys.exit(f"none: {error}")
one, other = network.add("one"), network.add("other")
assert network.add("one") is one
code = "import socket; s = socket.create_server((%r, 7000)); print('up', flush=True)\\n"
code += "while True: s.accept()[0].close()"
server = subprocess.Popen(
    [sys.executable, "-c", code % other.address],
    preexec_fn=other.enter, stdout=subprocess.PIPE,
)
server.stdout.readline()
neighbour = subprocess.Popen(
    [sys.executable, "-c", (code % other.address).replace("7000", "7001")],
    preexec_fn=other.enter, stdout=subprocess.PIPE,
)
neighbour.stdout.readline()

def reaches(host=None, within=60, port=7000):
    address = other.address, port
    program = f"import socket; socket.create_connection({address}, timeout={within})"
    done = subprocess.run(
        [sys.executable, "-c", program],
        preexec_fn=None if host is None else host.enter, capture_output=True,
    )
    return done.returncode == 0

print("whole", reaches(one), reaches())
network.cut("one", "other")
print("cut", reaches(one, within=1), reaches())
network.heal()
network.cut("other", "one")
print("other way", reaches(one, within=1), reaches())
network.heal()
network.cut("other", CLIENTS)
print("from clients", reaches(one), reaches(within=1))
network.heal()
for sender, receiver in (("one", "other"), ("other", "one")):
    network.cut(sender, receiver, 7000)
    print("one port", reaches(one, within=1), reaches(one, port=7001))
    network.heal()
print("healed", reaches(one), reaches())
server.kill()
neighbour.kill()
"""


def test_hosts_reach_each_other_unless_they_are_cut_apart_one_way_or_the_other() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False, timeout=300
    )
    if done.returncode and done.stderr.startswith("none: "):
        if os.environ.get("TIDEMARK_REQUIRE_ALL") == "1":
            pytest.fail(done.stderr)
        pytest.skip("needs the right to make network namespaces: run the tests as root")
    assert done.stderr == ""
    assert done.stdout.splitlines() == [
        "whole True True",
        "cut False True",
        "other way False True",
        "from clients True False",
        "one port False True",
        "one port False True",
        "healed True True",
    ]
