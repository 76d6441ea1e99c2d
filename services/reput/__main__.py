"""Stopgap reput main until the real service lands."""
from __future__ import annotations
import asyncio, dataclasses, os, sys, time
from pathlib import Path
import click
from services.reput.dispatcher import Dispatcher
from services.reput.index_writer import IndexWriter
from shared.files.commit_log import CommitLogReader
from shared.files.os_disk import OsDisk
from shared.files.positions import Positions
from shared.files.store_config import StoreConfig
from shared.files.store_dir import Role, StoreDir
from shared.runtime.clock import SystemClock, boot_id
from shared.runtime.config import load, setting
from shared.runtime.doorbell import Doorbell
from shared.runtime.health import AdminServer, Health
from shared.runtime.lifecycle import run_parts, run_process, stop_on_signals
from shared.runtime.metrics import new_registry
from tidemark.formats.checkpoint import Slot
from prometheus_client import Gauge

@dataclasses.dataclass(frozen=True)
class C:
    store_dir: Path = Path("data"); run_dir: Path|None=None
    store: StoreConfig = dataclasses.field(default_factory=StoreConfig)
    admin_host: str = "127.0.0.1"; admin_port: int = 8082
@dataclasses.dataclass(frozen=True)
class LS(StoreConfig):
    commit_log_file_size: int = 64 << 20
    index_slots: int = 50_000
    index_entries: int = 200_000
@dataclasses.dataclass(frozen=True)
class L(C):
    store: LS = dataclasses.field(default_factory=LS)

async def run(c: C) -> None:
    stop = asyncio.Event(); stop_on_signals(stop)
    clock = SystemClock(); health = Health(clock)
    rd = c.run_dir or c.store_dir/"run"
    d = StoreDir(OsDisk(), c.store_dir, c.store, run_dir=rd)
    c.store_dir.mkdir(parents=True, exist_ok=True)
    lock = d.lock(Role.REPUT); d.open_or_create()
    p = Positions.open(d.disk, d.checkpoint_path, fallback=d.private_positions_path)
    p.publish(Slot.REPUT_PID, os.getpid())
    bell = Doorbell(rd, "reput"); reg = new_registry("reput","0")
    disp = None
    def lag() -> float:
        return p.get(Slot.FLUSHED) - p.get(Slot.DISPATCHED)
    g = Gauge("tidemark_dispatch_lag_bytes","x",registry=reg); g.set_function(lag)
    async def follow() -> None:
        gen0 = 0
        b = boot_id()
        while not stop.is_set() and (p.get(Slot.GENERATION)==0 or (p.get(Slot.BOOT_ID_HIGH),p.get(Slot.BOOT_ID_LOW))!=tuple(b)):
            await asyncio.sleep(0.01)
        if stop.is_set(): return
        log = CommitLogReader(d, p)
        disp = Dispatcher(d, p, log, clock=clock, boot_id=tuple(b), utc_offset_s=lambda ms: 0)
        disp.resume(); health.state = "serving"
        last = time.monotonic(); gen = p.get(Slot.GENERATION)
        while True:
            if p.get(Slot.GENERATION) != gen:
                gen = p.get(Slot.GENERATION)
                if not disp.adopt_generation(): disp.resume()
            try:
                n = disp.step()
            except OSError as e:
                n = 0; print("blocked", e)
            if n: bell.ring("broker")
            if time.monotonic()-last > 1: disp.sync(); last = time.monotonic()
            if not n:
                if stop.is_set(): break
                await bell.wait(0.1 if not disp.is_catching_up else 0.001)
            else:
                await asyncio.sleep(0)
        disp.sync(); p.sync(); disp.close()
    async with AdminServer(health, reg, host=c.admin_host, port=c.admin_port):
        await run_parts(stop, {"follow": follow})
    bell.close(); lock.release()

if __name__ == "__main__":
    import argparse
    a = argparse.ArgumentParser(); 
    for n in ("store","config","host","port","admin-port","run-dir"): a.add_argument("--"+n)
    a.add_argument("--profile", default="default")
    x = a.parse_args()
    s = load(L if x.profile=="local" else C, Path(x.config) if x.config else None, "TIDEMARK_REPUT_", {"store_dir": Path(x.store) if x.store else None, "admin_port": int(x.admin_port) if x.admin_port else None, "run_dir": Path(x.run_dir) if x.run_dir else None})
    sys.exit(run_process(lambda: run(s)))
