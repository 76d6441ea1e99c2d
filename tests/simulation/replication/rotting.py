"""Trials in which a disk loses bytes or files that were confirmed.

Each has one cause and a known outcome: the damaged node finds the damage, reports it, knows it
after a restart, and does not lead while a healthy node can. The others go on, and after a resync by
command the node is a member again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final, NamedTuple

from services.ha.core.damage import RECHECK_MS
from services.ha.core.divergence import CRC_WINDOW
from services.ha.core.replica_context import DAMAGE, LOGS_DIFFER
from services.ha.lease.value import Member
from shared.state.records import STATE_TOPIC
from tests.simulation.replication.confirmed import Place
from tests.simulation.replication.consumer import PULLED_MAX
from tests.simulation.replication.damaging import found_within_ms
from tests.simulation.replication.machine import Machine
from tests.simulation.replication.plan import SERVICES, TIMES
from tests.simulation.replication.store_view import DAMAGE as DAMAGE_FILE
from tests.simulation.replication.store_view import FILE_SIZE
from tests.simulation.replication.trying import AGAIN_MS, QUIET_MS, UNHEARD_MS, Trying
from tests.simulation.replication.violation import Violation
from tests.support.sim_disk import SECTOR
from tidemark.formats.checkpoint import REGION_HA, Slot

if TYPE_CHECKING:
    from tests.simulation.replication.world import World

MET_MS: Final = 1_500
"""Time within which the broker reports damage that a reader has found, and ha has checked the
log."""
SHUT_MS: Final = 1_000
"""The broker of a halted node refuses reads after this time."""
KNOWN_MS: Final = 3_000
"""Time within which a start has recovered the log and read the damaged place again."""
ALONE_MS: Final = 2 * TIMES.lease_ms + TIMES.wait_random_ms + 2 * TIMES.wait_rank_ms + 250
"""A node with trouble waits no longer than this before it takes an expired lease."""
DIFFER_MS: Final = RECHECK_MS + 8_000
"""A slave that found a difference asks again every two seconds; both logs are checked within this,
also if a place of the last trial is reported anew."""
HANDED_MS: Final = 10_000 + 3 * TIMES.lease_ms
"""Trouble of a master moves the lease within this time, also shortly after a previous move."""
TAIL_SIZE: Final = 40
"""Properties end a record, and only the CRC of the record covers them."""
SIZE_AND_MAGIC: Final = 8
FILES_MIN: Final = 4
"""Minimum for a log from which a middle file can be removed."""


class _Spot(NamedTuple):
    """One record of a queue."""

    topic: str
    queue: int
    offset: int
    place: Place


class Rotting(Trying):
    """Trials of one world."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.trials: tuple[Callable[[], None], ...] = (
            self._rot_at_a_slave,
            self._rot_under_a_comparison,
            self._rot_at_the_last_node,
            self._rot_at_a_master,
            self._rot_and_start_alone,
        )

    # -- trials ----------------------------------------------------------------------------

    def _rot_at_a_slave(self) -> None:
        """The check of a slave finds damage that no reader meets. It is known after all nodes die
        at that moment, and is found again by the same process in a log that was copied anew."""
        epoch, slave = self._history.epoch, self._any_but(self._master())
        end = self._any_spot(slave).place.end
        self._flip(slave, self._random.randrange(end - TAIL_SIZE, end))
        if self._random.random() < 0.5:
            self._die_when_it_is_known(slave)
        else:
            self._must_be_found(slave)
            if self._history.epoch != epoch:
                raise Violation(f"{slave.name}, a slave, is damaged, but epoch {epoch} has ended")
        self._copy_anew(slave)
        self._lose_a_log_file(slave)
        self._must_be_found(slave)
        self._copy_anew(slave)
        self._find_behind_an_older_mark(slave)
        self._copy_anew(slave)

    def _rot_under_a_comparison(self) -> None:
        """A slave that is compared with its master finds that the logs differ. It keeps its log;
        the master finds its own damage, hands over to a healthy node and halts."""
        history, group, master = self._history, self._group, self._master()
        slave, spot = self._any_but(master), None
        history.producers_paused = True
        if self._random.random() < 0.5:
            end = slave.slot(Slot.FLUSHED)
            group.cut_power(slave)
            self._wait(UNHEARD_MS + QUIET_MS)
            spot = self._unknown_to(slave, end)
        else:
            self._wait(QUIET_MS)
            slave.processes["ha"].end()
        start, end = (spot or self._at_the_end_of_a_file(master)).place
        self._flip(master, self._random.randrange(start, end))
        if not slave.is_on:
            group.boot(slave)
        if not self._until(lambda: self._knows(master), DIFFER_MS):
            raise Violation(
                f"{slave.name} was compared with {master.name}, whose log is damaged; the alarms "
                "are "
                f"{self._alarms_of(slave)} and {self._alarms_of(master)}"
            )
        self._must_hand_over(master)
        history.producers_paused = False
        self._must_be_found(master)
        self._copy_anew(master)
        if LOGS_DIFFER in self._alarms_of(slave):
            raise Violation(
                f"the logs are the same, but {slave.name} reports {self._alarms_of(slave)}"
            )

    def _rot_at_the_last_node(self) -> None:
        """A damaged master goes on while there is no other node, also after a restart of its ha. It
        hands over to the first healthy one, and halts."""
        history, group, master = self._history, self._group, self._master()
        spots = self._not_read_at_a_start(master)
        if not self._may_lose_one or not spots:
            return  # The next master needs this node, or this one could not open its epoch.
        for other in history.others(master):
            self._lose(other, SERVICES)
        self._wait(UNHEARD_MS)
        epoch, spot = history.epoch, self._random.choice(spots)
        self._flip(master, self._random.randrange(*spot.place))
        reader = group.broker_of(master.name)
        assert reader is not None, "the group is whole"

        def is_met() -> bool:
            reader.consumer.show(spot.topic, spot.queue, spot.offset)
            return self._knows(master)

        if not self._until(is_met, MET_MS):
            raise Violation(
                f"a consumer of {master.name} meets a damaged record at {spot.place}, but its ha "
                f"reports {self._alarms_of(master)}"
            )
        self._kill(master, self._random.choice((("ha",), SERVICES)))
        if not self._until(lambda: self._knows(master), KNOWN_MS):
            raise Violation(f"{master.name} was damaged before its restart, but reports nothing")

        # While a member is away, the epoch record is not confirmed.
        state = "master" if group.plan.min_in_sync == 1 else "promoting"

        def leads() -> bool:
            return history.epoch > epoch and self._world.state_of(master.name).startswith(state)

        if not self._until(leads, AGAIN_MS):
            raise Violation(
                f"{master.name} is damaged and the last node; {self._world.why_not_whole(0)}"
            )
        self._bring_back()
        self._must_hand_over(master)
        self._must_be_found(master)
        self._copy_anew(master)

    def _rot_at_a_master(self) -> None:
        """A damaged master of a whole group hands over. If it is killed as soon as it has noted the
        damage, it leaves its lease to the others."""
        history, group, master = self._history, self._group, self._master()
        spot, epoch, reader = self._any_spot(master), history.epoch, group.broker_of(master.name)
        self._flip(master, self._random.randrange(*spot.place))
        if self._random.random() < 0.7:
            strike, delay_us = master.processes["ha"].end, self._random.randint(0, 2_000)
            master.arm_file(DAMAGE_FILE.name, lambda: self._timeline.after(delay_us, strike))
        assert reader is not None, "the group is whole"

        def is_moved() -> bool:
            reader.consumer.show(spot.topic, spot.queue, spot.offset)
            return history.epoch > epoch

        self._until(is_moved, AGAIN_MS)
        if history.epoch == epoch or history.holder is None or history.holder.node == master.name:
            raise Violation(
                f"{master.name} met damage in epoch {epoch}, but {history.holder} has the lease in "
                f"epoch {history.epoch}"
            )
        self._must_be_found(master)
        self._copy_anew(master)

    def _rot_and_start_alone(self) -> None:
        """ha of a damaged master starts again while no other node runs; the others are still in its
        set. It takes its own lease again, and hands over to the first node that comes back."""
        history, group, master = self._history, self._group, self._master()
        spots = self._not_read_at_a_start(master)
        if not spots:
            return
        epoch, spot, reader = (
            history.epoch,
            self._random.choice(spots),
            group.broker_of(master.name),
        )
        assert reader is not None, "the group is whole"
        self._flip(master, self._random.randrange(*spot.place))
        master.arm_file(DAMAGE_FILE.name, self._lose_all_ha)

        def is_known() -> bool:
            reader.consumer.show(spot.topic, spot.queue, spot.offset)
            return bool(group.gone)

        if not self._until(is_known, MET_MS):
            raise Violation(f"a consumer of {master.name} meets damage, but ha notes nothing")
        group.gone.discard((master.name, "ha"))
        group.start_later(master, "ha", 50)
        if not self._until(lambda: history.epoch > epoch, KNOWN_MS + ALONE_MS):
            raise Violation(
                f"{master.name} is damaged and the only node, and does not take its lease again: "
                f"{self._world.why_not_whole(0)}"
            )
        self._bring_back()
        self._must_hand_over(master)
        self._must_be_found(master)
        self._copy_anew(master)

    # -- actions ---------------------------------------------------------------------------

    def _die_when_it_is_known(self, slave: Machine) -> None:
        """Kill all nodes when the slave has noted its damage, while it is a member. It starts first
        and does not take the lease of another node."""
        group, history = self._group, self._history
        delay_us = self._random.randint(0, 2_000)
        slave.arm_file(DAMAGE_FILE.name, lambda: self._timeline.after(delay_us, self._lose_all))
        found_ms = found_within_ms(slave, len(history.confirmed))
        if not self._until(lambda: bool(group.gone), found_ms):
            raise Violation(f"{slave.name} is damaged for {found_ms} ms, but has noted nothing")
        epoch = history.epoch
        for service in SERVICES:
            group.gone.discard((slave.name, service))
            group.start_later(slave, service, 50)
        if not self._until(lambda: self._knows(slave), KNOWN_MS):
            raise Violation(f"{slave.name} has noted damage and does not report it after a restart")
        is_member = Member(slave.name, slave.incarnation) in history.published
        self._wait(ALONE_MS if is_member else QUIET_MS)
        if history.epoch != epoch:
            raise Violation(f"{slave.name} is damaged, but takes the lease of epoch {epoch}")
        self._bring_back()
        self._must_be_found(slave)

    def _kill(self, machine: Machine, services: Iterable[str]) -> None:
        for service in services:
            machine.processes[service].end()

    def _find_behind_an_older_mark(self, slave: Machine) -> None:
        """Damage is known although a power cut leaves an older confirm offset: the sector of the
        page was written to the disk before the record was confirmed."""
        older, confirm = slave.page(), slave.slot(Slot.CONFIRM)
        spots: list[_Spot] = []

        def is_newer() -> bool:
            nonlocal older, confirm, spots
            shown = min(slave.slot(Slot.DISPATCHED_DURABLE), slave.slot(Slot.CONFIRM))
            if shown // FILE_SIZE > confirm // FILE_SIZE:
                older, confirm = slave.page(), slave.slot(Slot.CONFIRM)
            spots = [spot for spot in self._spots(shown) if spot.place.start >= confirm]
            return bool(spots)

        self._until(is_newer, AGAIN_MS)
        start, end = (spots[-1] if spots else self._any_spot(slave)).place
        size = self._random.choice((SIZE_AND_MAGIC, end - start))
        self._flip(slave, self._random.randrange(start, start + size))
        self._must_be_found(slave)
        page = slave.page()
        self._group.cut_power(slave)
        sector = slice(REGION_HA, REGION_HA + SECTOR)
        slave.put_page(page[: sector.start] + older[sector] + page[sector.stop :])
        self._group.boot(slave)
        self._must_be_found(slave)

    def _lose_all(self) -> None:
        for machine in self._group.machines.values():
            self._lose(machine, SERVICES)

    def _lose_all_ha(self) -> None:
        for machine in self._group.machines.values():
            self._lose(machine, ["ha"])

    def _flip(self, machine: Machine, at: int) -> None:
        """Flip a bit of the log on one disk."""
        self._group.trace("world", f"a bit of byte {at} of {machine.name} flips")
        self._history.damaged.add(machine.name)
        machine.flip(at, self._random.randrange(8))

    def _lose_a_log_file(self, machine: Machine) -> None:
        """Remove a file in the middle of the log."""
        first = machine.begins_at // FILE_SIZE
        count = (self._world.shown(machine.name) or 0) // FILE_SIZE
        if count < first + FILES_MIN:
            self._flip(machine, self._any_spot(machine).place.start)
            return
        at = self._random.randrange(first + 1, count - 1) * FILE_SIZE
        self._group.trace("world", f"the log file {at} of {machine.name} is gone")
        self._history.damaged.add(machine.name)
        machine.remove_log_file(at)

    def _copy_anew(self, machine: Machine) -> None:
        """Resync the node by command, in the running process; then the group is whole again."""
        self._history.replaced.add(machine.name)
        self._must_accept_resync(machine)
        self._must_be_whole_again(f"{machine.name} was resynced")
        if machine.noted_damage is not None:
            raise Violation(f"{machine.name} was copied anew, but ha/damage is still there")
        self._history.damaged.clear()

    # -- choice of records -----------------------------------------------------------------

    def _spots(self, end: int) -> list[_Spot]:
        """All messages below end that every log still has, in the order of the log."""
        records = self._history.records
        first = max(machine.begins_at for machine in self._group.machines.values())
        found = [
            _Spot(topic, queue, offset, place)
            for topic, queue in records.queues
            for offset, place in enumerate(records.seen(topic, queue, end))
            if place.start >= first
        ]
        return sorted(found, key=lambda spot: spot.place)

    def _any_spot(self, machine: Machine) -> _Spot:
        """A record that consumers of the node may see: any, or the first or last one of a file."""
        spots = self._spots(self._world.shown(machine.name) or 0)
        last = {spot.place.start // FILE_SIZE: spot for spot in spots}
        first = {spot.place.start // FILE_SIZE: spot for spot in reversed(spots)}
        chosen = self._random.choice((spots, list(last.values()), list(first.values())))
        return self._random.choice(chosen)

    def _not_read_at_a_start(self, machine: Machine) -> list[_Spot]:
        """Records that a broker does not read before it opens an epoch."""
        durable = machine.slot(Slot.DISPATCHED_DURABLE)
        spots = self._spots(durable - durable % FILE_SIZE)
        return [spot for spot in spots if spot.topic != STATE_TOPIC]

    def _at_the_end_of_a_file(self, machine: Machine) -> _Spot:
        """The last record of a file that is compared, except the last file of the log; none that
        consumers read regularly."""
        records, end = self._history.records, len(self._history.confirmed)
        last = {spot.place.start // FILE_SIZE: spot for spot in self._spots(end)}
        found = [
            spot
            for number, spot in last.items()
            if number < (end - 1) // FILE_SIZE
            and spot.place.start > end - CRC_WINDOW
            and spot.offset + PULLED_MAX < len(records.seen(spot.topic, spot.queue, end))
        ]
        return self._random.choice(found) if found else self._any_spot(machine)

    def _unknown_to(self, slave: Machine, end: int) -> _Spot | None:
        """A confirmed record that a slave without power has on its disk and does not know to be
        confirmed, or None. end: end of the data on its disk."""
        marks = slave.slot(Slot.CONFIRM), slave.slot(Slot.DISPATCHED_DURABLE), slave.noted_confirm
        found = [spot for spot in self._spots(end) if spot.place.start >= max(marks)]
        return found[-1] if found else None

    # -- checks ----------------------------------------------------------------------------

    def _knows(self, machine: Machine) -> bool:
        """Whether the node reports damage of its log."""
        return DAMAGE in self._alarms_of(machine)

    def _must_be_found(self, machine: Machine) -> None:
        """Check that the node halts with the reason and refuses reads, and that the others accept
        sends."""

        def is_found() -> bool:
            halted = self._world.state_of(machine.name).startswith("halted")
            return halted and self._knows(machine)

        acked = len(self._history.acked)
        found_ms = found_within_ms(machine, len(self._history.confirmed))
        if not self._until(is_found, found_ms):
            raise Violation(
                f"{machine.name} is damaged for {found_ms} ms; its state is "
                f"{self._world.state_of(machine.name)} with the alarms {self._alarms_of(machine)}"
            )
        if not self._until(lambda: not self._world.shown(machine.name), SHUT_MS):
            raise Violation(f"{machine.name} is damaged and serves reads")
        is_answered = self._until(lambda: len(self._history.acked) > acked, AGAIN_MS)
        if self._may_lose_one and not is_answered:
            raise Violation(f"no send is acknowledged since {machine.name} is damaged")

    def _must_hand_over(self, machine: Machine) -> None:
        """Check that another node gets the lease."""
        if not self._until(lambda: self._has_another_master(machine), HANDED_MS):
            raise Violation(
                f"{machine.name} is damaged and the master for {HANDED_MS} ms: "
                f"{self._world.why_not_whole(0)}"
            )
