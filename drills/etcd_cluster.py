"""A real etcd of one or more members, each a process on its host, for tests and drills.

Members are killed, paused, started again and deprived of their data; a key is read, written and
deleted by hand, over the JSON gateway of the first member that answers.
"""

from __future__ import annotations

import base64
import json
import shutil
import signal
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Self

from drills.namespaces import Host
from drills.node_group import ask
from shared.cluster.local_etcd import PROGRAM, EtcdMember, etcd_command
from tidemark.testing.child import ChildProcess, NodeFailed
from tidemark.testing.ports import free_ports

START_S: Final = 60.0
"""Limit of a start and of an election; on a quiet machine they take two seconds, or less."""
POLL_S: Final = 0.05
CALL_S: Final = 10.0
REMEDY: Final = "apt-get install etcd-server"


class EtcdCluster:
    """Members of one etcd cluster, used as ``with EtcdCluster(…) as etcd``."""

    def __init__(
        self,
        directory: Path,
        hosts: Sequence[Host],
        *,
        scheme: str = "http",
        options: Sequence[str] = (),
    ) -> None:
        """hosts: one member on each. scheme, options: of the client ports, and more arguments of
        every member; for TLS."""
        if shutil.which(PROGRAM) is None:
            raise NodeFailed(f"{PROGRAM} is not installed: {REMEDY}")
        self._options = list(options)
        ports = iter(free_ports(2 * len(hosts)))
        self.members = {
            host.name: EtcdMember(
                host.name,
                directory / host.name,
                client_url=f"{scheme}://{host.address}:{next(ports)}",
                peer_url=f"http://{host.address}:{next(ports)}",
            )
            for host in hosts
        }
        self.processes = {
            host.name: ChildProcess(directory / f"{host.name}.log", before_exec=host.before_exec)
            for host in hosts
        }

    def __enter__(self) -> Self:
        directory = next(iter(self.members.values())).data_dir.parent
        directory.mkdir(parents=True, exist_ok=True)
        self.start_killed()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    @property
    def endpoints(self) -> tuple[str, ...]:
        """The URLs of all members for clients."""
        return tuple(member.client_url for member in self.members.values())

    @property
    def peer_ports(self) -> list[int]:
        """The ports at which the members listen for each other."""
        return [int(member.peer_url.rpartition(":")[2]) for member in self.members.values()]

    @property
    def settings(self) -> dict[str, object]:
        """The [cluster] settings of the lease."""
        return {"lease": "etcd", "etcd_endpoints": list(self.endpoints)}

    # -- life -------------------------------------------------------------------------------------

    def start(self, *names: str) -> None:
        """Start members."""
        for name in names:
            member = self.members[name]
            command = etcd_command(member, list(self.members.values()))
            self.processes[name].start([*command, *self._options])

    def start_killed(self) -> None:
        """Start the members that do not run."""
        self.start(*(name for name, each in self.processes.items() if not each.is_alive))

    def kill(self, *names: str) -> None:
        """SIGKILL members (default: all)."""
        for name in names or self.members:
            self.processes[name].kill()

    def pause(self, *names: str) -> None:
        """SIGSTOP members (default: all)."""
        for name in names or self.members:
            self.processes[name].send_signal(signal.SIGSTOP)

    def resume(self, *names: str) -> None:
        """SIGCONT members (default: all)."""
        for name in names or self.members:
            self.processes[name].send_signal(signal.SIGCONT)

    def lose_data(self) -> None:
        """Kill all members, delete what they have stored and start them again."""
        self.kill()
        for member in self.members.values():
            shutil.rmtree(member.data_dir)
        self.start_killed()
        self.wait_serving()

    def wait_serving(self) -> None:
        """Wait until the running members answer, with a leader. Raises NodeFailed."""
        deadline = time.monotonic() + START_S
        while not all(
            ask(f"{self.members[name].client_url}/health")[1].get("health") == "true"
            for name, process in self.processes.items()
            if process.is_alive
        ):
            for name, process in self.processes.items():
                if process.wanted:
                    process.check_alive()
                if time.monotonic() > deadline:
                    raise NodeFailed(f"etcd {name} does not serve.\n{process.log_tail()}")
            time.sleep(POLL_S)

    def leader(self) -> str:
        """Return the name of the leading member. Raises NodeFailed if no member names one."""
        for name, member in self.members.items():
            status = ask(f"{member.client_url}/v3/maintenance/status", "POST", {})[1]
            if status and status.get("leader") == status["header"]["member_id"]:
                return name
        raise NodeFailed("no member of etcd is its leader")

    def lead(self, name: str) -> None:
        """Let a member become the leader. Raises NodeFailed if none leads."""
        leader = self.leader()
        if leader == name:
            return
        status = ask(f"{self.members[name].client_url}/v3/maintenance/status", "POST", {})[1]
        body = {"targetID": status["header"]["member_id"]}
        url = f"{self.members[leader].client_url}/v3/maintenance/transfer-leadership"
        code, answer = ask(url, "POST", body, timeout_s=CALL_S)
        if code != 200:
            raise NodeFailed(f"{leader} gave the leadership of etcd not to {name}: {answer}")

    # -- administration ---------------------------------------------------------------------------

    def compact(self) -> None:
        """Delete the history of all keys, and defragment the members one by one. Raises
        NodeFailed."""
        self.write("/compacted", "")  # a revision is compacted only once
        revision = self.call("kv/range", {"key": encoded("/")})["header"]["revision"]
        self.call("kv/compaction", {"revision": revision, "physical": True})
        for name, member in self.members.items():
            url = f"{member.client_url}/v3/maintenance/defragment"
            status, answer = ask(url, "POST", {}, timeout_s=CALL_S)
            if status != 200:
                raise NodeFailed(f"etcd {name} was not defragmented: {status} {answer}")

    def require_user(self, name: str, password: str) -> None:
        """Add a user who may do everything, and require one from now on. Raises NodeFailed."""
        for user in (name, "root"):  # etcd requires that there is a root
            self.call("auth/user/add", {"name": user, "password": password})
            self.call("auth/user/grant", {"user": user, "role": "root"})
        self.call("auth/enable", {})

    def set_full(self, full: bool) -> None:
        """Raise the alarm of a member whose space is used up, so that all refuse writes; or disarm
        it. Raises NodeFailed."""
        alarm = {"memberID": "1", "alarm": "NOSPACE"}  # etcd accepts the number of no member
        self.call("maintenance/alarm", {"action": "ACTIVATE" if full else "DEACTIVATE", **alarm})

    # -- by hand ----------------------------------------------------------------------------------

    def call(self, path: str, body: Mapping[str, object]) -> dict[str, Any]:
        """Return the answer of the first member that gives one. Raises NodeFailed."""
        failed = ""
        for endpoint in self.endpoints:
            status, answer = ask(f"{endpoint}/v3/{path}", "POST", body, timeout_s=CALL_S)
            if status == 200:
                return answer
            failed = f"{status} {answer}"
        raise NodeFailed(f"etcd answered {path} with {failed}")

    def read(self, key: str) -> dict[str, Any] | None:
        """Return the stored key, with its decoded value as ``text``; None if there is none."""
        found = self.call("kv/range", {"key": encoded(key)}).get("kvs")
        if not found:
            return None
        return {**found[0], "text": base64.b64decode(found[0].get("value", "")).decode()}

    def write(self, key: str, text: str, *, revision: str | None = None, **more: object) -> bool:
        """Write a key; return False if it has another revision than the given one."""
        put = {"request_put": {"key": encoded(key), "value": encoded(text), **more}}
        unchanged = {"key": encoded(key), "target": "MOD", "mod_revision": revision}
        compare = [] if revision is None else [unchanged]
        return bool(self.call("kv/txn", {"compare": compare, "success": [put]}).get("succeeded"))

    def delete(self, key: str) -> None:
        """Delete a key."""
        self.call("kv/deleterange", {"key": encoded(key)})

    def edit(self, key: str, **fields: str) -> bool:
        """Change fields of a key's JSON object; return False if another write came first."""
        found = self.read(key)
        assert found is not None, f"{key} does not exist"
        text = json.dumps(json.loads(found["text"]) | fields)
        return self.write(key, text, revision=found["mod_revision"])


def encoded(text: str) -> str:
    """Return a key or value as the gateway takes it."""
    return base64.b64encode(text.encode()).decode()
