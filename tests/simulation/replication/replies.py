"""Commands of operators to one start of ha, and the checks of their replies.

The commands go through the product's ``Control``. Each gets one reply in time, in every state, and
the reply is true: what it reports as done is done.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from services.ha.core.effects import Reply
from services.ha.core.events import Command
from services.ha.core.switch_orders import STOPPING
from services.ha.shell.command_bodies import Answer
from services.ha.shell.control import CommandTimeout, Control
from tests.simulation.replication.loop import CLIENT
from tests.simulation.replication.violation import Violation
from tidemark.errors import TidemarkError

if TYPE_CHECKING:
    from tests.simulation.replication.ha import Ha

LEAVING: Final = -1
"""Token of the command by which a stopping start hands over."""
REPLY_US_MAX: Final = 15_000_000
"""Longest time that a command may wait for the lease and then for other nodes."""
TIMEOUT_S: Final = 600.0


class Replies:
    """The commands of one start of ha."""

    def __init__(self, ha: Ha) -> None:
        self._ha = ha
        self.control = Control(self._post, dict, timeout_s=TIMEOUT_S)
        self.by_token: dict[int, Reply] = {}
        """The reply to each command, by the token of the world."""
        self._unanswered: dict[int, int] = {}
        """When each command without a reply was given."""
        self._nodes_version: dict[int, int] = {}
        """By the token of ``Control``: the version of the group's nodes when it was given."""
        self._posted: dict[int, tuple[Command, int]] = {}
        """By the token of ``Control``: commands without a reply, and when they were given."""

    def give(self, command: Command, *, refused: bool) -> None:
        """Give a command. refused: it must not succeed."""
        self._unanswered[command.token] = self._ha.machine.timeline.now_us
        self._ha.loop.call_soon_threadsafe(self._ask, command, refused)

    @property
    def are_waiting(self) -> bool:
        """Whether a command has no reply yet."""
        return bool(self._unanswered)

    def target_of(self, token: int) -> str | None:
        """The node to switch to with a command that has no reply yet."""
        return self._posted[token][0].arguments.get("to") if token in self._posted else None

    def replied(self, reply: Reply) -> None:
        """Check a reply of the replica, and pass it on."""
        if reply.token not in self._posted:
            raise Violation(f"{self._ha.node} replies once more to a command: {reply}")
        command, given_us = self._posted.pop(reply.token)
        if reply.ok:
            self._must_be_true(command, reply, given_us)
        elif not reply.body.get("detail"):
            raise Violation(f"{self._ha.node} refuses {command} without a reason")
        self.control.replied(reply)

    def check(self) -> None:
        """Check that commands get a reply in time, unless the process is gone or paused."""
        process, now_us = self._ha.process, self._ha.machine.timeline.now_us
        if not process.alive or process.paused:
            return
        for token, given_us in self._unanswered.items():
            if now_us - max(given_us, process.resumed_us) > REPLY_US_MAX:
                raise Violation(
                    f"{self._ha.node} has not replied to command {token} of {given_us} µs"
                )

    # -- inside --------------------------------------------------------------------------------

    def _post(self, command: Command) -> None:
        self._posted[command.token] = command, self._ha.machine.timeline.now_us
        if (replica := self._ha.replica) is not None:
            self._nodes_version[command.token] = replica.context.members.version
        self._ha.post(command)

    def _ask(self, command: Command, refused: bool) -> None:
        task = self._ha.loop.create_task(self._answer(command, refused), name=CLIENT)
        task.add_done_callback(asyncio.Task.result)

    async def _answer(self, command: Command, refused: bool) -> None:
        try:
            answer = await self.control.command(command.name, command.arguments)
        except CommandTimeout:
            return  # This start has ended.
        except TidemarkError as error:
            answer = Answer(error.status, {"detail": error.detail})
        reply = Reply(command.token, ok=answer.status == 200, body=dict(answer.body))
        self.by_token[command.token] = reply
        self._unanswered.pop(command.token, None)
        if reply.ok and refused:
            raise Violation(f"{self._ha.node} carries out {command}: {reply.body}")
        if command.token == LEAVING:
            self._ha.stop.set()

    def _must_be_true(self, command: Command, reply: Reply, given_us: int) -> None:
        """Check what a reply reports as done."""
        ha, history, body = self._ha, self._ha.history, reply.body
        replica = ha.replica
        assert replica is not None
        leases = history.leases_since(given_us)
        arguments, is_dry = command.arguments, command.arguments.get("dry_run") == "true"
        match command.name:
            case "switchover" if arguments.get("reason") != STOPPING:
                to, node = arguments.get("to"), body.get("master")
                is_so = (to is None or node == to) and history.has_led(str(node), body.get("epoch"))
            case "failover" if not is_dry:
                is_so = body.get("master") == ha.node and history.has_led(ha.node, body["epoch"])
            case "pause" | "resume":
                is_so = any(lease.paused == (command.name == "pause") for lease in leases)
            case "remove-member":
                is_so = any(
                    arguments["node"] not in [member.node for member in lease.in_sync]
                    for lease in leases
                )
            case "add-node" | "remove-node":
                version = self._nodes_version[reply.token]
                if body.get("changed") and replica.context.members.version != version + 1:
                    raise Violation(
                        f"{ha.node} carries out {command}, given at version {version} of the "
                        f"nodes, at version {replica.context.members.version}"
                    )
                # What the lease has had since, not only what it has: another order may undo it.
                is_so = any(
                    (arguments["node"] in lease.replicas) == (command.name == "add-node")
                    for lease in leases
                )
            case "resync" if body.get("changed"):
                is_begun = ha.machine.is_being_emptied
                is_so = is_begun or ha.machine.incarnation != replica.context.incarnation
            case "recreate-lease" if not is_dry:
                is_so = any(lease.epoch == body["epoch"] for lease in leases)
            case _:
                is_so = True
        if not is_so:
            raise Violation(f"{ha.node} replies to {command} of {given_us} µs with {body}")
