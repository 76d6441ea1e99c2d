"""Trial of all status requests and admin commands of a whole group.

Producers are paused and nothing else happens, so each status and each reply is known in full.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from services.ha.lease.value import Lease
from tests.simulation.replication.plan import TIMES
from tests.simulation.replication.trying import Trying
from tests.simulation.replication.violation import Violation
from tidemark.formats.checkpoint import Slot

if TYPE_CHECKING:
    from tests.simulation.replication.machine import Machine
    from tests.simulation.replication.world import World

REST_MS: Final = TIMES.lease_ms
"""Time within which everything is confirmed and all nodes have reported that."""
ANSWER_MS: Final = 3_000
"""A command that waits for other nodes takes 2.5 s at most."""
LATE_MS: Final = TIMES.link_dead_ms + TIMES.heartbeat_ms
"""Maximal age of another node's status."""


class Operating(Trying):
    """Trials of one world."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.trials = (self.run,)

    def run(self) -> None:
        """Check every status and give every command. Raises Violation."""
        self._history.producers_paused = self._world.operator_paused = True
        self._wait(REST_MS)
        for machine in self._group.machines.values():
            self._check_status(machine)
        self._give_all()
        self._wait(REST_MS)
        for machine in self._group.machines.values():
            self._check_status(machine)
        self._history.producers_paused = self._world.operator_paused = False

    # -- status ----------------------------------------------------------------------------

    def _check_status(self, machine: Machine) -> None:
        """Check the status of a node: its own state, the other nodes and the lease."""
        group, history, lease = self._group, self._history, self._lease
        service, holder = group.ha_of(machine.name), history.holder
        assert service is not None, "the group is whole"
        assert service.replica is not None, "the group is whole"
        assert holder is not None, "the group is whole"
        reported = service.replica.status(machine.boot_ms())
        is_master = machine.name == holder.node
        self._must_report(
            machine,
            reported,
            {
                "group": "g0",
                "epoch": lease.epoch,
                "master": holder.node,
                "min_in_sync": group.plan.min_in_sync,
                "paused": False,
                "alarms": [],
                "reason": None,
                "history": [
                    {"epoch": entry.epoch, "start": entry.start} for entry in machine.table
                ][-len(reported["history"]) :],
            },
        )
        self._must_report(
            machine,
            reported["lease"],
            {
                "holder": holder.node,
                "in_sync_version": lease.in_sync_version,
                "reason": None,
            },
        )
        needed = machine.slot(Slot.NEEDED_FROM)
        if is_master and needed != machine.end:
            raise Violation(
                f"{machine.name} keeps its log from {needed} on, but all members have it up "
                f"to {machine.end}"
            )
        self._must_be_within(machine, "age_ms", reported["lease"]["age_ms"], TIMES.lease_ms)
        left_ms = reported["lease"]["deadline_in_ms"]
        if is_master:
            self._must_be_within(machine, "deadline_in_ms", left_ms, TIMES.lease_ms)
        elif left_ms is not None or reported["opening_ms"] is not None:
            raise Violation(f"{machine.name} is a slave and reports a deadline: {reported}")
        if sorted(node["node"] for node in reported["nodes"]) != sorted(group.machines):
            raise Violation(f"{machine.name} reports the nodes {reported['nodes']}")
        for node in reported["nodes"]:
            self._check_node(machine, node, holder.node)

    def _check_node(self, machine: Machine, reported: dict[str, Any], master: str) -> None:
        """Check what the status of a node reports for one of the group."""
        of, end = self._group.machines[reported["node"]], self._group.machines[master].end
        self._must_report(
            machine,
            reported,
            {
                "role": "master" if of.name == master else "slave",
                "state": "master" if of.name == master else "in-sync",
                "incarnation": of.incarnation,
                "in_sync": True,
                "first_offset": of.begins_at,
                "log_end": end,
                "durable_end": end,
                "confirm": len(self._history.confirmed),
                "lag_bytes": 0,
                "reason": None,
            },
        )
        self._must_be_within(machine, f"lag_ms of {of.name}", reported["lag_ms"], 0)
        late_ms = 0 if of is machine else LATE_MS
        self._must_be_within(machine, f"seen_ms_ago of {of.name}", reported["seen_ms_ago"], late_ms)

    def _must_report(self, machine: Machine, reported: dict[str, Any], so: dict[str, Any]) -> None:
        for name, value in so.items():
            if reported.get(name) != value:
                raise Violation(
                    f"the status of {machine.name} has {name} {reported.get(name)!r}, expected "
                    f"{value!r}: {reported}"
                )

    def _must_be_within(self, machine: Machine, name: str, reported: int | None, most: int) -> None:
        if reported is None or not 0 <= reported <= most:
            raise Violation(
                f"the status of {machine.name} has {name} {reported}, expected 0 to {most}"
            )

    @property
    def _lease(self) -> Lease:
        stored = self._group.lease.stored
        assert stored is not None, "the group is whole"
        return stored.lease

    # -- commands --------------------------------------------------------------------------

    def _give_all(self) -> None:
        """Check each reply, and that the commands have no other effect."""
        history, machines = self._history, self._group.machines
        assert history.holder is not None, "the group is whole"
        master = history.holder.node
        slave = self._group.random.choice([name for name in machines if name != master])
        before = self._lease
        loss = {
            "estimated_loss_bytes": 0,
            "own_end": machines[slave].end,
            "known_confirm": len(history.confirmed),
            "known_from": sorted(machines),
            "loss_reason": None,
        }
        stopped = {"group": "g0", "old_master_stopped": "true"}
        for node, order, arguments, ok, body in (
            (slave, "failover", {"dry_run": "true"}, True, loss),
            (slave, "failover", {"dry_run": "true", "to": master}, False, {}),
            (slave, "failover", stopped, False, loss),
            (slave, "failover", {"group": "g0"}, False, loss),
            (slave, "failover", stopped | {"group": "another"}, False, loss),
            (master, "failover", stopped, False, {}),
            (master, "switchover", {"to": master}, True, {"changed": False, "master": master}),
            (master, "switchover", {"to": "n9"}, False, {}),
            (slave, "switchover", {"to": slave}, False, {"master": master}),
            (slave, "remove-member", {"node": slave}, False, {}),
            (master, "remove-member", {"node": slave}, False, {}),
            (master, "remove-member", {"node": master}, False, {}),
            (master, "remove-member", {"node": "n9"}, False, {}),
            (slave, "pause", {}, True, {"changed": True, "paused": True}),
            (master, "pause", {}, True, {"changed": False, "paused": True}),
            (master, "resume", {}, True, {"changed": True, "paused": False}),
            (slave, "resume", {}, True, {"changed": False, "paused": False}),
            (slave, "recreate-lease", {}, False, {}),
            (master, "recreate-lease", {}, False, {}),
            (master, "resync", {"group": "g0"}, False, {}),
            (slave, "resync", {"group": "another"}, False, {}),
            (slave, "adopt", {}, False, {}),
        ):
            self._check_reply(node, order, arguments, ok, body)
        after = self._lease
        if after._replace(renewed=0) != before._replace(renewed=0):
            raise Violation(f"commands without effect changed the lease from {before} to {after}")

    def _check_reply(
        self, node: str, order: str, arguments: dict[str, str], ok: bool, body: dict[str, Any]
    ) -> None:
        reply = self._reply_to(order, arguments, self._group.machines[node], ANSWER_MS)
        if reply is None or reply.ok != ok or not (ok or reply.body.get("detail")):
            raise Violation(f"{node} replies to {order} {arguments} with {reply}")
        reported = {name: reply.body.get(name) for name in body}
        if reported.get("changed", False) is None and not body["changed"]:
            # The lease was read again meanwhile, so the writer is not known.
            reported["changed"] = False
        if reported != body:
            raise Violation(
                f"{node} replies to {order} {arguments} with {reported}, expected {body}"
            )
