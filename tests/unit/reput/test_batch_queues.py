"""Dispatch of inner batches: whatever interrupts it, the files are those of a pure model."""

from __future__ import annotations

import shutil
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from services.reput import unit_mending
from services.reput.dispatcher import Dispatcher
from services.reput.queue_survey import QueueKey, StoredUnit
from services.reput.resume import QueueMode
from shared.files.commit_log import CommitLogReader
from shared.files.consume_queue import ConsumeQueueReader
from shared.files.pull import PullStatus, get_message
from tests.support.for_each import for_each
from tests.support.sim_disk import SimDisk
from tests.support.small_dispatch import dispatch_all, dispatched, dispatcher_of
from tests.support.small_store import BOOT, CONFIG, SmallStore
from tests.support.small_store import small as small
from tidemark.errors import DamagedFile
from tidemark.formats import inner_batch, record
from tidemark.formats.checkpoint import Slot, queue_number
from tidemark.formats.filenames import offset_name
from tidemark.formats.queue_unit import batch_range, encode, encode_batch
from tidemark.offsets import BATCH_UNIT_SIZE, UNIT_SIZE

PER_FILE = CONFIG.consume_queue_file_size // UNIT_SIZE
BATCHES = "batchconsumequeue/batches/0"
Files = dict[str, bytes]


class Model:
    """Records of several queues of both kinds, and the queue files that belong to them."""

    def __init__(self, small: SmallStore) -> None:
        self.small = small
        self.units: defaultdict[tuple[str, int], list[bytes]] = defaultdict(list)
        """Units by the queue's directory and the size of a unit."""
        self._next: defaultdict[int, int] = defaultdict(int)

    def put(self, queue: int = 0, count: int = 3) -> None:
        """Append a batch of count messages to a queue of the topic batches."""
        unit = self.small.put_batch([b"x" * 20] * count, "batches", queue, dispatched=False)
        base = self._next[queue]
        self._next[queue] += count
        made = encode_batch(unit, self.small.now_ms, base, count)
        self.units[f"batchconsumequeue/batches/{queue}", BATCH_UNIT_SIZE].append(made)

    def put_ordinary(self, queue: int = 0) -> None:
        """Append an ordinary record to a queue of the topic orders."""
        made = encode(self.small.put("orders", queue, tags="A"))
        self.units[f"consumequeue/orders/{queue}", UNIT_SIZE].append(made)

    def fill(self, batches: int = 25) -> None:
        """Append batches of 1 to 5 messages in two queues, and ordinary records between them."""
        for number in range(batches):
            self.put(0, 1 + number % 5)
            self.put_ordinary(number % 2)
            if number % 3 == 0:
                self.put(7, 2)
        self.small.flush()

    def files(self) -> Files:
        """Return the queue files of everything appended, if nothing ever expires."""
        made = {}
        for (directory, unit_size), units in self.units.items():
            raw, size = b"".join(units), PER_FILE * unit_size
            for start in range(0, len(raw), size):
                name = f"{directory}/{offset_name(start)}"
                made[name] = raw[start : start + size].ljust(size, b"\0")
        return made


@pytest.fixture
def model(small: SmallStore) -> Model:
    return Model(small)


def stored(small: SmallStore) -> Files:
    found = {}
    for name in ("consumequeue", "batchconsumequeue"):
        for path in (small.store.root / name).rglob("0*"):
            if path.is_file():
                found[str(path.relative_to(small.store.root))] = path.read_bytes()
    return found


def queue_mode(dispatcher: Dispatcher) -> QueueMode:
    assert dispatcher.decision is not None
    return dispatcher.decision.queue_mode


def test_an_inner_batch_gets_one_unit_with_its_first_queue_offset(model: Model) -> None:
    model.put(0, 3)
    model.put(0, 1)
    model.small.flush()
    dispatcher = dispatched(model.small)
    assert stored(model.small) == model.files()
    content = stored(model.small)[f"{BATCHES}/{offset_name(0)}"]
    assert [batch_range(content, at) for at in (0, 46, 92)] == [(0, 3), (3, 4), (0, 0)]
    assert dispatcher.units_count == 2


@pytest.mark.parametrize("killed_after", range(14))
@pytest.mark.parametrize("synced", [False, True])
def test_a_kill_after_any_step_and_a_restart_give_the_same_files(
    model: Model, killed_after: int, synced: bool
) -> None:
    model.fill()
    small = model.small
    killed = dispatcher_of(small)
    for number in range(killed_after):
        killed.step(700)
        if synced and number == killed_after // 2:
            killed.sync()
    before = small.positions.get(Slot.DISPATCHED)
    again = dispatcher_of(small)
    assert small.positions.get(Slot.DISPATCHED) == before
    dispatch_all(again)
    again.sync()
    assert stored(small) == model.files()
    assert again.repaired_count == 0
    assert small.positions.get(Slot.RESUME_UNITS) == sum(map(len, model.units.values()))
    assert queue_mode(dispatcher_of(small)) is QueueMode.CONTINUE


def test_a_power_cut_costs_unsynced_units_and_they_come_back(model: Model) -> None:
    model.fill(15)
    small = model.small
    dispatcher = dispatched(small)
    dispatcher.sync()
    synced = model.files()
    model.fill(15)
    dispatch_all(dispatcher)
    small.positions.publish(Slot.BOOT_ID_LOW, 77)
    small.positions.publish(Slot.GENERATION, small.positions.get(Slot.GENERATION) + 1)
    again = dispatcher_of(small, (BOOT[0], 77))
    assert {name: raw for name, raw in stored(small).items() if any(raw)} == synced
    dispatch_all(again)
    assert stored(small) == model.files()


@pytest.mark.parametrize("what", ["", "batches/0", *(f"batches/0/{460 * n:020}" for n in range(3))])
def test_a_missing_queue_or_file_comes_back_byte_for_byte(model: Model, what: str) -> None:
    model.fill()
    small = model.small
    dispatched(small).sync()
    path = small.store.batch_queues_dir / what
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    dispatcher = dispatcher_of(small)
    assert queue_mode(dispatcher) is QueueMode.REBUILD
    dispatch_all(dispatcher)
    assert stored(small) == model.files()
    dispatcher.sync()
    assert queue_mode(dispatcher_of(small)) is QueueMode.CONTINUE


def change(small: SmallStore, number: int, data: bytes, at: int = 0, queue: int = 0) -> None:
    """Overwrite bytes of a unit in its file, from byte ``at`` on."""
    start = number // PER_FILE * PER_FILE * BATCH_UNIT_SIZE
    path = small.store.batch_queues_dir / "batches" / str(queue) / offset_name(start)
    with path.open("r+b") as file:
        file.seek(number * BATCH_UNIT_SIZE - start + at)
        file.write(data)


@pytest.mark.parametrize(
    ("number", "at", "data"),
    [
        (4, 0, bytes(46)),
        (4, 28, bytes(10)),
        (4, 36, b"\0\1"),
        (24, 36, b"\0\0"),
        (24, 36, b"\0\7"),
        (24, 28, b"\1"),
    ],
    ids=["zeros", "no base", "other count", "last: no messages", "last: other count", "last: base"],
)
def test_a_damaged_unit_is_found_by_a_restart_and_made_again(
    model: Model, number: int, at: int, data: bytes
) -> None:
    model.fill()
    dispatched(model.small).sync()
    change(model.small, number, data, at)
    dispatcher = dispatcher_of(model.small)
    assert queue_mode(dispatcher) is QueueMode.REBUILD
    dispatch_all(dispatcher)
    assert stored(model.small) == model.files()


def forget_dispatch(small: SmallStore) -> None:
    """Let the next start take the queues for those of RocketMQ."""
    for slot in Slot:
        if 192 <= slot < 256:
            small.positions.publish(slot, 0)


@pytest.mark.parametrize("size", [8, 12, 20, 27, 28, 35, 37, 38, 41])
def test_a_torn_last_unit_of_an_adopted_queue_is_made_again(model: Model, size: int) -> None:
    model.fill()
    dispatched(model.small)
    change(model.small, 24, bytes(BATCH_UNIT_SIZE - size), size)
    forget_dispatch(model.small)
    dispatcher = dispatcher_of(model.small)
    assert queue_mode(dispatcher) is QueueMode.ADOPT
    dispatch_all(dispatcher)
    assert stored(model.small) == model.files()


def test_an_adopted_queue_ends_before_a_unit_with_another_queues_record(model: Model) -> None:
    model.fill()
    dispatched(model.small)
    ours, others = (model.units[f"batchconsumequeue/batches/{queue}", 46] for queue in (0, 7))
    change(model.small, 24, others[-1][:28] + ours[-1][28:])
    forget_dispatch(model.small)
    dispatched(model.small)
    assert stored(model.small) == model.files()


def test_a_unit_belongs_to_a_record_of_its_own_kind_only(model: Model) -> None:
    small = model.small
    model.put(0, 1)
    model.put_ordinary(0)
    small.flush()
    dispatcher = dispatcher_of(small)
    for (directory, size), (content,) in model.units.items():
        topic = directory.split("/")[1]
        for unit_size in (UNIT_SIZE, BATCH_UNIT_SIZE):
            unit = content[:20].ljust(unit_size, b"\0")
            if unit_size == BATCH_UNIT_SIZE:
                unit = unit[:28] + (0).to_bytes(8, "big") + (1).to_bytes(2, "big") + bytes(8)
            made = StoredUnit(QueueKey(topic, 0, unit_size), 0, unit)
            assert dispatcher._source.is_of(made) == (unit_size == size)
            assert dispatcher._source.is_of_another(made) == (unit_size != size)


# RocketMQ stores such a message, and gives it no unit.
def test_a_restart_after_a_single_message_of_a_batch_topic_rebuilds_nothing(model: Model) -> None:
    small = model.small
    model.put(0, 3)
    small.flush()
    dispatched(small).sync()
    small.put("batches", 0)
    small.flush()
    dispatched(small).sync()
    content = stored(small)[f"{BATCHES}/{offset_name(0)}"]
    assert [batch_range(content, at) for at in (0, 46)] == [(0, 3), (3, 4)]
    again = dispatcher_of(small)
    assert queue_mode(again) is QueueMode.CONTINUE
    change(small, 0, b"\1")
    assert mended(again, 0) == [("batches", 0, 0)]
    assert stored(small)[f"{BATCHES}/{offset_name(0)}"] == content


@pytest.mark.parametrize("bytes_max", [1, 1 << 20])
def test_single_messages_between_batches_of_a_new_queue_get_units(
    model: Model, bytes_max: int
) -> None:
    small = model.small
    for count in (3, 2):
        small.put_batch([b"x"] * count, "batches", dispatched=False)
        small.put("batches", 0)
    small.flush()
    dispatcher = dispatcher_of(small)
    dispatch_all(dispatcher, bytes_max)
    dispatcher.sync()
    content = stored(small)[f"{BATCHES}/{offset_name(0)}"]
    ranges = [batch_range(content, at) for at in (0, 46, 92, 138)]
    assert ranges == [(0, 3), (3, 4), (4, 6), (6, 7)]
    assert queue_mode(dispatcher_of(small)) is QueueMode.CONTINUE


def test_units_of_batches_beyond_the_log_go(model: Model) -> None:
    model.fill()
    dispatched(model.small)
    last = model.units[BATCHES, 46][-1]
    surplus = (model.small.end).to_bytes(8, "big") + last[8:28]
    surplus += batch_range(last)[1].to_bytes(8, "big") + last[36:]
    change(model.small, 25, surplus)
    forget_dispatch(model.small)
    dispatched(model.small)
    assert stored(model.small) == model.files()


# -- expired records ------------------------------------------------------------------------------


def shorten(small: SmallStore, files: int) -> int:
    """Remove the first files of the log, as retention does."""
    log_min = files * CONFIG.commit_log_file_size
    small.positions.publish(Slot.MIN, log_min)
    for start in range(0, log_min, CONFIG.commit_log_file_size):
        small.log_file(start).unlink(missing_ok=True)
    return log_min


def clean_all(dispatcher: Dispatcher) -> None:
    while dispatcher.may_clean:
        dispatcher.clean()


def test_a_rebuild_after_files_expired_keeps_their_numbering(model: Model) -> None:
    model.fill(60)
    small = model.small
    dispatcher = dispatched(small)
    dispatcher.sync()
    shorten(small, 2)
    clean_all(dispatcher)
    dispatcher.sync()
    kept = stored(small)
    assert f"{BATCHES}/{offset_name(0)}" not in kept
    assert kept == {name: raw for name, raw in model.files().items() if name in kept}
    small.positions.publish(Slot.RESUME_CHECK, 0)
    again = dispatcher_of(small)
    assert queue_mode(again) is QueueMode.REBUILD
    dispatch_all(again)
    assert stored(small) == kept
    model.fill(20)
    dispatch_all(again)
    assert stored(small) == {
        name: raw
        for name, raw in model.files().items()
        if name in kept
        or name > max(each for each in kept if Path(each).parent == Path(name).parent)
    }


@pytest.mark.parametrize("lost", ["unit", "files"])
def test_a_rebuild_without_the_units_before_the_log_begins_anew(model: Model, lost: str) -> None:
    model.fill(60)
    small = model.small
    dispatched(small).sync()
    log_min = shorten(small, 5)
    units = [
        unit for unit in model.units[BATCHES, 46] if int.from_bytes(unit[:8], "big") >= log_min
    ]
    expired = 60 - len(units)
    assert expired % PER_FILE
    if lost == "unit":
        change(small, expired - 1, bytes(BATCH_UNIT_SIZE))
    else:
        for number in range(expired // PER_FILE + 1):
            small.queue_file("batches", 0, number * PER_FILE * BATCH_UNIT_SIZE).unlink()
    dispatched(small).sync()
    content = [raw for name, raw in sorted(stored(small).items()) if name.startswith(BATCHES + "/")]
    whole = b"".join(units)
    names = sorted(path.name for path in (small.store.root / BATCHES).iterdir())
    assert names == [offset_name(460 * number) for number in range(len(names))]
    assert b"".join(content)[: len(whole)] == whole
    assert not any(b"".join(content)[len(whole) :])
    assert queue_mode(dispatcher_of(small)) is QueueMode.CONTINUE


# -- mending --------------------------------------------------------------------------------------


def mended(dispatcher: Dispatcher, queue_offset: int, queue: int = 0) -> list[tuple[str, int, int]]:
    mending = dispatcher.mending
    mending.begin(queue_number("batches", queue), queue_offset)
    while mending.step(dispatcher.position, 700):
        pass
    return mending.replaced


@pytest.mark.parametrize("number", [0, 1, 12, 23, 24])
def test_any_damaged_byte_of_a_unit_is_repaired(model: Model, number: int) -> None:
    model.fill()
    dispatcher = dispatched(model.small)
    unit, rng = model.units[BATCHES, 46][number], Random(number)
    first, after = batch_range(unit)
    for byte in range(BATCH_UNIT_SIZE):
        for queue_offset in {first, after - 1}:
            change(model.small, number, bytes([unit[byte] ^ 1 << rng.randrange(8)]), byte)
            replaced = mended(dispatcher, queue_offset)
            while stored(model.small) != model.files():
                # A reader may be led to a neighbour, which it then asks about.
                assert replaced, (byte, queue_offset)
                replaced = mended(dispatcher, queue_offset)
            assert replaced == [("batches", 0, first)]


@for_each("byte", range(28, 36))
def test_a_reader_that_asks_for_each_unit_it_cannot_follow_gets_all_messages(
    tmp_path: Path, byte: int
) -> None:
    """The damage leads the search for a queue offset to a wrong unit: that with a larger offset."""
    small = SmallStore(tmp_path / "store")
    model, rng = Model(small), Random(byte)
    model.fill()
    dispatcher = dispatched(small)
    for number, unit in enumerate(model.units[BATCHES, 46][1:-1], 1):
        bit = rng.choice([bit for bit in range(7) if not unit[byte] >> bit & 1])
        for offset in range(*batch_range(unit)):
            change(small, number, bytes([unit[byte] | 1 << bit]), byte)
            assert read_all(dispatcher, small, offset) == list(range(offset, 75)), number
    small.close()


def read_all(dispatcher: Dispatcher, small: SmallStore, offset: int) -> list[int]:
    """Pull until the end; return the queue offsets. Lets reput check each unit in an error."""
    found: list[int] = []
    while offset < 75:
        log = CommitLogReader(small.store, small.positions)
        queue = ConsumeQueueReader(small.store, "batches", 0, log)
        try:
            result = get_message(queue, log, offset=offset, dispatched=dispatcher.position)
        except DamagedFile as error:
            if not mended(dispatcher, error.facts["queue_offset"]):
                raise
            continue
        finally:
            queue.close()
            log.close()
        assert result.status is PullStatus.FOUND
        for *_, data in result.records():
            messages = list(inner_batch.unpack(record.decode(data)))
            found += [each.queue_offset for each in messages if each.queue_offset >= offset]
        offset = result.next_offset
    return found


def test_adjacent_damaged_units_and_the_only_one_of_a_queue_are_repaired(model: Model) -> None:
    model.fill()
    model.put(9, 4)
    model.small.flush()
    dispatcher = dispatched(model.small)
    for number in (3, 4, 5):
        change(model.small, number, b"\xff" * BATCH_UNIT_SIZE)
    change(model.small, 0, b"\1", queue=9)
    assert len(mended(dispatcher, batch_range(model.units[BATCHES, 46][4])[0])) == 3
    assert mended(dispatcher, 2, queue=9) == [("batches", 9, 0)]
    assert stored(model.small) == model.files()


def test_units_whose_numbers_no_valid_unit_shows_are_left_unchanged(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    model.fill()
    dispatcher = dispatched(model.small)
    monkeypatch.setattr(unit_mending, "NEIGHBOURS_MAX", 2)
    for number in range(6, 15):
        change(model.small, number, bytes(4), 8)
    before = stored(model.small)
    assert mended(dispatcher, batch_range(model.units[BATCHES, 46][10])[0]) == []
    assert stored(model.small) == before


def test_the_first_unit_after_expired_ones_is_repaired(model: Model) -> None:
    model.fill(60)
    dispatcher = dispatched(model.small)
    log_min = shorten(model.small, 2)
    units = model.units[BATCHES, 46]
    number = next(
        number for number, unit in enumerate(units) if int.from_bytes(unit[:8], "big") >= log_min
    )
    change(model.small, number, b"\0\0\0\7", 8)
    assert mended(dispatcher, batch_range(units[number])[0])
    assert stored(model.small) == model.files()
    # The unit before shows the number; if it is damaged as well, nothing is guessed.
    change(model.small, number, b"\0\0\0\7", 8)
    change(model.small, number - 1, b"\1", 28)
    before = stored(model.small)
    assert mended(dispatcher, batch_range(units[number])[0]) == []
    assert stored(model.small) == before


def test_a_batch_queue_file_that_vanished_is_noticed(model: Model) -> None:
    model.fill()
    dispatcher = dispatched(model.small)
    dispatcher.watch_queues()
    model.small.queue_file("batches", 7, 0).unlink()
    with pytest.raises(DamagedFile, match="batches/7"):
        dispatcher.watch_queues()


# -- anything at any time -------------------------------------------------------------------------


@for_each("seed", range(60))
def test_random_records_steps_restarts_and_damage_give_the_files_of_the_model(seed: int) -> None:
    rng, disk = Random(seed), SimDisk(seed)
    disk.check_reserved = True
    root = Path("/store")
    small = SmallStore(root, replace(CONFIG, index_enabled=rng.random() < 0.3), disk=disk)
    model, generation = Model(small), 1

    def restarted(cut: bool) -> Dispatcher:
        nonlocal generation
        if cut:
            generation += 1
            small.positions.publish(Slot.BOOT_ID_LOW, 70 + generation)
            small.positions.publish(Slot.GENERATION, small.positions.get(Slot.GENERATION) + 1)
        log = CommitLogReader(small.store, small.positions)
        made = Dispatcher(
            small.store,
            small.positions,
            log,
            boot_id=(BOOT[0], small.positions.get(Slot.BOOT_ID_LOW)),
        )
        made.resume()
        return made

    def damage() -> None:
        """Lose a queue file, or bytes of it, while nothing runs."""
        paths = [
            path
            for path, _ in disk.files()
            if "batches" in path.parts and path.is_relative_to(root)
        ]
        if not paths:
            return
        path = rng.choice(paths)
        if rng.random() < 0.5:
            disk.unlink(path)
        else:
            number = rng.randrange(PER_FILE) * BATCH_UNIT_SIZE
            disk.open(path, writable=True).pwrite(bytes(rng.choice([8, 46])), number)

    dispatcher = restarted(False)
    for _ in range(rng.randrange(20, 60)):
        match rng.choice(
            ["batch", "batch", "batch", "ordinary", "step", "step", "sync", "restart"]
        ):
            case "batch":
                model.put(rng.randrange(3), rng.randrange(1, 6))
            case "ordinary":
                model.put_ordinary(rng.randrange(2))
            case "step":
                small.flush()
                dispatcher.step(rng.choice([1, 300, 2000]))
            case "sync":
                dispatcher.sync()
            case "restart":
                if rng.random() < 0.3:
                    damage()
                dispatcher = restarted(rng.random() < 0.5)
    small.flush()
    dispatch_all(dispatcher)
    dispatcher.sync()
    made = {
        str(path.relative_to(root)): raw
        for path, raw in disk.files()
        if path.is_relative_to(root) and "consumequeue" in path.relative_to(root).parts[0]
    }
    assert made == model.files()
    assert queue_mode(restarted(False)) is QueueMode.CONTINUE
