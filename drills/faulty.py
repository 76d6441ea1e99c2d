"""``python -m drills.faulty MODULE …``: run a service with fault injection.

The service is the real one, started as ``python -m MODULE`` would start it. Clocks, fdatasync,
fsync and a few named steps are wrapped: they read the fault page first and can kill or stop the
process. Without a fault in the page the behaviour is unchanged.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, Final

from drills.faults import FAULTS_VARIABLE, Fault, FaultPage
from services.ha.core import effects
from services.ha.shell import hooks
from shared.cluster import grant
from shared.files.positions import Positions
from shared.runtime import programs
from shared.runtime.clock import SystemClock
from tidemark.formats.checkpoint import NodeRole, Slot

PUBLISHED: Final[dict[Slot, str]] = {
    Slot.SERVING_EPOCH: "promote-8",
    Slot.EPOCH_RECORD_END: "promote-9",
    Slot.ROLE: "promote-10",
}
"""Promotion steps that publish a slot in the checkpoint page, by broker and ha."""
HA: Final = f"{programs.SERVICES}.ha"
SENDS: Final = (f"{programs.SERVICES}.broker.log.term", "reached")
CALLERS_MAX: Final = 6
_MS: Final = 1000


def install(page: FaultPage, module: str = "") -> None:
    """Make this process, which will run module, apply the faults in the page from now on."""
    _install_clocks(page)
    _install_syncs(page)
    _install_steps(page)
    _install_publications(page)
    if module == HA:
        _install_effects(page)

    def stand_still(_signum: int, _frame: FrameType | None) -> None:
        stall_ms = page.get(Fault.STALL_MS)
        page.set(Fault.STALL_MS, 0)  # the drill waits for this
        # The handler runs in the main thread, so it blocks the event loop.
        time.sleep(stall_ms / _MS)

    signal.signal(signal.SIGUSR1, stand_still)


def _install_clocks(page: FaultPage) -> None:
    boot_ms, wall_ms = SystemClock.boot_ms, SystemClock.wall_ms
    SystemClock.boot_ms = lambda self: boot_ms(self) + page.get(Fault.BOOT_STEP_MS)  # type: ignore[method-assign]
    SystemClock.wall_ms = lambda self: wall_ms(self) + page.get(Fault.WALL_STEP_MS)  # type: ignore[method-assign]


def _install_syncs(page: FaultPage) -> None:
    def slow(sync: Callable[[Any], None]) -> Callable[[Any], None]:
        def after_delay(fd: Any) -> None:
            if delay_ms := page.get(Fault.SYNC_DELAY_MS):
                time.sleep(delay_ms / _MS)
            sync(fd)

        return after_delay

    os.fdatasync = slow(os.fdatasync)  # type: ignore[assignment]
    os.fsync = slow(os.fsync)  # type: ignore[assignment]


def _install_steps(page: FaultPage) -> None:
    may_answer = grant.may_answer

    def may_answer_and_stop(*arguments: Any, **named: Any) -> bool:
        answer = may_answer(*arguments, **named)
        if answer and page.get(Fault.STOP_BEFORE_ANSWER) and _releases_sends():
            page.set(Fault.STOP_BEFORE_ANSWER, 0)
            os.kill(os.getpid(), signal.SIGSTOP)
        return answer

    grant.may_answer = may_answer_and_stop
    hooks.install(lambda step: reach_step(page, step))


def _install_effects(page: FaultPage) -> None:
    # Imported here because the other services do not need it and drills measure their start time.
    from services.ha.shell.effect_runner import STEPS, EffectRunner

    run_effect = EffectRunner._run_effect

    def run_after_step(self: EffectRunner, effect: effects.Effect) -> None:
        step = STEPS.get(type(effect))
        if step is not None:
            reach_step(page, step)
        run_effect(self, effect)

    EffectRunner._run_effect = run_after_step  # type: ignore[method-assign]


def _install_publications(page: FaultPage) -> None:
    publish = Positions.publish

    def publish_after_step(self: Positions, slot: Slot, value: int) -> None:
        step = PUBLISHED.get(slot)
        if step is not None and value and (slot is not Slot.ROLE or value == NodeRole.MASTER):
            reach_step(page, step)
        publish(self, slot, value)

    Positions.publish = publish_after_step  # type: ignore[method-assign]


def _releases_sends() -> bool:
    """Return whether the response that may now be sent is that of a send; reads call this too."""
    frame = sys._getframe(1)
    for _ in range(CALLERS_MAX):
        if (frame.f_globals.get("__name__"), frame.f_code.co_name) == SENDS:
            return True
        if frame.f_back is None:
            return False
        frame = frame.f_back
    return False


def reach_step(page: FaultPage, step: str) -> None:
    """Execute the pending action, if it belongs to the step that a service is about to take."""
    armed = page.armed
    if armed is None or armed[1] != step:
        return
    page.disarm()
    os.kill(os.getpid(), signal.SIGKILL if armed[0] == "kill" else signal.SIGSTOP)


def main() -> None:
    """Install the faults, then run the module named by the first command line argument."""
    module = sys.argv[1]
    install(FaultPage(Path(os.environ[FAULTS_VARIABLE])), module)
    sys.argv = sys.argv[1:]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
