"""Native implementation of formats/index_chains.py, the hot functions of index files.

Another process may write to the file meanwhile, so every number is loaded once, and the loaded copy
is checked against the room and used. Values that other processes, or this one after a kill, rely on
are stored with release order: slots after the entries, counts at the end.
"""

from cpython.buffer cimport (
    PyBUF_SIMPLE,
    PyBUF_WRITABLE,
    PyBuffer_Release,
    PyObject_GetBuffer,
    Py_buffer,
)
from libc.stdint cimport (
    INT64_MAX,
    INT64_MIN,
    int32_t,
    int64_t,
    uint8_t,
    uint32_t,
    uint64_t,
    uintptr_t,
)
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memset

from tidemark.formats.index_chains import IndexFileTooShort, NoRow

cdef extern from "bigendian.h":
    uint32_t tidemark_get_32(const uint8_t *at) nogil
    uint64_t tidemark_get_64(const uint8_t *at) nogil
    void tidemark_put_32(uint8_t *at, uint32_t value) nogil
    void tidemark_put_64(uint8_t *at, uint64_t value) nogil
    uint32_t TIDEMARK_SWAP_32(uint32_t value) nogil
    uint64_t TIDEMARK_SWAP_64(uint64_t value) nogil

cdef extern from *:
    """
    /* One aligned store that is not split and not moved before an earlier one. */
    static inline void tidemark_store_32(uint8_t *at, uint32_t value) {
        __atomic_store_n((uint32_t *)at, TIDEMARK_SWAP_32(value), __ATOMIC_RELEASE);
    }
    static inline void tidemark_store_64(uint8_t *at, uint64_t value) {
        __atomic_store_n((uint64_t *)at, TIDEMARK_SWAP_64(value), __ATOMIC_RELEASE);
    }
    static inline uint32_t tidemark_load_32(const uint8_t *at) {
        return TIDEMARK_SWAP_32(__atomic_load_n((const uint32_t *)at, __ATOMIC_ACQUIRE));
    }
    static inline uint64_t tidemark_load_64(const uint8_t *at) {
        return TIDEMARK_SWAP_64(__atomic_load_n((const uint64_t *)at, __ATOMIC_ACQUIRE));
    }
    /* Prefetch memory that is read and written soon; the address may be invalid. */
    static inline void tidemark_fetch(const void *at) { __builtin_prefetch(at, 1, 2); }
    """
    void tidemark_store_32(uint8_t *at, uint32_t value) nogil
    void tidemark_store_64(uint8_t *at, uint64_t value) nogil
    uint32_t tidemark_load_32(const uint8_t *at) nogil
    uint64_t tidemark_load_64(const uint8_t *at) nogil
    void tidemark_fetch(const void *at) nogil

cdef enum:
    HEADER_SIZE = 40
    SLOT_SIZE = 4
    ENTRY_SIZE = 20
    ROW_SIZE = 24
    STEP_MAX = 4096  # PUT_MANY_MAX
    PLACES = 2 * STEP_MAX
    BEGIN_TIMESTAMP_AT = 0
    END_TIMESTAMP_AT = 8
    BEGIN_OFFSET_AT = 16
    END_OFFSET_AT = 24
    COUNTS_AT = 32
    UNLOCKED_ROWS = 2731  # 64 KiB of rows, from which the GIL is released
    AHEAD = 24  # number of entries whose slots are prefetched

cdef int64_t SECONDS_MAX = 0x7FFFFFFF
cdef int64_t HASH_MAX = 0x7FFFFFFF


cdef struct File:
    uint8_t *base
    uint8_t *slots_at
    uint8_t *entries_at
    uint32_t slots
    int64_t entries


cdef struct Entry:
    int32_t key_hash
    int64_t offset
    int32_t seconds
    int32_t previous


cdef struct Place:
    uint32_t slot
    uint32_t number  # 0: free


cdef class View:
    """A borrowed buffer of an index file, checked to contain all slots and entries."""

    cdef Py_buffer buffer
    cdef bint is_held
    cdef File file

    def __cinit__(self):
        self.is_held = False

    def __dealloc__(self):
        if self.is_held:
            PyBuffer_Release(&self.buffer)


cdef View view_of(view, slots, entries, bint writable):
    cdef View found = View.__new__(View)
    cdef Py_ssize_t size
    cdef int64_t slot_count, entry_count
    PyObject_GetBuffer(view, &found.buffer, PyBUF_WRITABLE if writable else PyBUF_SIMPLE)
    found.is_held = True
    size = found.buffer.len
    if (
        not 1 <= slots <= 0xFFFFFFFF
        or not 0 <= entries <= 0x7FFFFFFF
        or size < HEADER_SIZE + SLOT_SIZE * slots + ENTRY_SIZE * entries
    ):
        raise IndexFileTooShort(f"{size} bytes for {slots} slots and {entries} entries")
    if <uintptr_t>found.buffer.buf & 7:
        raise ValueError("the index file is not 8-byte aligned in memory")
    slot_count = slots
    entry_count = entries
    found.file.base = <uint8_t *>found.buffer.buf
    found.file.slots_at = found.file.base + HEADER_SIZE
    found.file.entries_at = found.file.slots_at + SLOT_SIZE * slot_count
    found.file.slots = <uint32_t>slot_count
    found.file.entries = entry_count
    return found


cdef inline void get_entry(const File *file, int64_t number, Entry *entry) noexcept nogil:
    cdef const uint8_t *at = file.entries_at + ENTRY_SIZE * number
    entry.key_hash = <int32_t>tidemark_get_32(at)
    entry.offset = <int64_t>tidemark_get_64(at + 4)
    entry.seconds = <int32_t>tidemark_get_32(at + 12)
    entry.previous = <int32_t>tidemark_get_32(at + 16)


cdef inline int64_t next_entry_of(uint64_t counts) noexcept nogil:
    cdef int32_t number = <int32_t>(<uint32_t>counts)
    return number if number > 0 else 1


cdef inline int64_t visible_count(const File *file) noexcept nogil:
    cdef int64_t number = next_entry_of(tidemark_load_64(file.base + COUNTS_AT))
    if number > file.entries:
        number = file.entries
    return number - 1 if number > 1 else 0


cdef inline int64_t newest_visible(
    const File *file, uint32_t slot_value, int64_t newest
) noexcept nogil:
    """Follow a chain to its first entry number ≤ newest (< entries); 0 if there is none."""
    cdef int64_t number = slot_value
    cdef int32_t previous
    if number >= file.entries:
        return 0
    while number > newest:
        previous = <int32_t>tidemark_get_32(file.entries_at + ENTRY_SIZE * number + 16)
        number = previous if 0 < previous < number else 0
    return number


# -- insertion -------------------------------------------------------------------------------------


def put_rows(view, slots, entries, rows, first):
    cdef View found
    cdef Py_buffer borrowed
    cdef Py_ssize_t count, start
    cdef int64_t done = 0
    cdef const uint8_t *at
    found = view_of(view, slots, entries, True)
    PyObject_GetBuffer(rows, &borrowed, PyBUF_SIMPLE)
    try:
        count = borrowed.len // ROW_SIZE
        if borrowed.len % ROW_SIZE or not 0 <= first <= count:
            raise NoRow(f"row {first} of {borrowed.len} bytes of rows")
        start = first
        count -= start
        at = <const uint8_t *>borrowed.buf + ROW_SIZE * start
        if not hashes_fit(at, count):
            raise NoRow(f"a key hash is not in 0…{HASH_MAX}")
        if count < UNLOCKED_ROWS:
            done = put_all(&found.file, at, count)
        else:
            with nogil:
                done = put_all(&found.file, at, count)
    finally:
        PyBuffer_Release(&borrowed)
    return done


cdef bint hashes_fit(const uint8_t *rows, Py_ssize_t count) noexcept nogil:
    cdef uint64_t seen = 0
    cdef uint64_t key_hash
    cdef Py_ssize_t number
    for number in range(count):
        memcpy(&key_hash, rows + ROW_SIZE * number + 16, 8)
        seen |= key_hash
    return seen <= <uint64_t>HASH_MAX


cdef int64_t put_all(const File *file, const uint8_t *rows, int64_t count) noexcept nogil:
    cdef int64_t done = 0
    cdef int64_t step
    while done < count:
        step = count - done
        if step > STEP_MAX:
            step = STEP_MAX
        step = put_step(file, rows + ROW_SIZE * done, step)
        if step == 0:
            break
        done += step
    return done


cdef int64_t put_step(const File *file, const uint8_t *rows, int64_t count) noexcept nogil:
    """Insert up to count (at most STEP_MAX) rows with one store of the counts."""
    cdef uint64_t counts = tidemark_load_64(file.base + COUNTS_AT)
    cdef uint32_t slots_used = <uint32_t>(counts >> 32)
    cdef int64_t first_number = next_entry_of(counts)
    cdef int64_t begin_ms = <int64_t>tidemark_load_64(file.base + BEGIN_TIMESTAMP_AT)
    cdef uint32_t slot_of[STEP_MAX]
    cdef Place places[PLACES]
    cdef uint32_t places_mask = 1
    cdef uint32_t slot, value, at, number
    cdef uint64_t key_hash
    cdef int64_t index, offset, timestamp_ms, seconds
    cdef int64_t first_offset = 0, first_ms = 0
    cdef uint8_t *entry
    if count > file.entries - first_number:
        count = file.entries - first_number
    if count <= 0:
        return 0

    # The table is larger than the CPU caches: prefetch all slots at once.
    for index in range(count):
        memcpy(&key_hash, rows + ROW_SIZE * index + 16, 8)
        slot = <uint32_t>(key_hash & 0x7FFFFFFF) % file.slots
        slot_of[index] = slot
        tidemark_fetch(file.slots_at + SLOT_SIZE * <uint64_t>slot)

    # Newest entry of each slot in this step; the slots are stored after all entries.
    while places_mask < 2 * count:
        places_mask *= 2
    memset(places, 0, places_mask * sizeof(Place))
    places_mask -= 1
    entry = file.entries_at + ENTRY_SIZE * first_number
    for index in range(count):
        number = <uint32_t>(first_number + index)
        slot = slot_of[index]
        at = (slot * <uint32_t>0x9E3779B1) >> 8 & places_mask
        while places[at].number != 0 and places[at].slot != slot:
            at = (at + 1) & places_mask
        value = places[at].number
        if value == 0:
            value = tidemark_load_32(file.slots_at + SLOT_SIZE * <uint64_t>slot)
            if not 0 < value < first_number:
                value = 0
                slots_used += 1
            places[at].slot = slot
        places[at].number = number
        memcpy(&offset, rows, 8)
        memcpy(&timestamp_ms, rows + 8, 8)
        memcpy(&key_hash, rows + 16, 8)
        seconds = 0
        if begin_ms > 0 and timestamp_ms > begin_ms:
            seconds = (timestamp_ms - begin_ms) // 1000
            if seconds > SECONDS_MAX:
                seconds = SECONDS_MAX
        tidemark_put_32(entry, <uint32_t>(key_hash & 0x7FFFFFFF))
        tidemark_put_64(entry + 4, <uint64_t>offset)
        tidemark_put_32(entry + 12, <uint32_t>seconds)
        tidemark_put_32(entry + 16, value)
        if index == 0:
            first_offset, first_ms = offset, timestamp_ms
            if number == 1:
                begin_ms = timestamp_ms
        entry += ENTRY_SIZE
        rows += ROW_SIZE

    for index in range(count):
        tidemark_store_32(
            file.slots_at + SLOT_SIZE * <uint64_t>slot_of[index], <uint32_t>(first_number + index)
        )
    if first_number == 1:
        tidemark_store_64(file.base + BEGIN_OFFSET_AT, <uint64_t>first_offset)
        tidemark_store_64(file.base + BEGIN_TIMESTAMP_AT, <uint64_t>first_ms)
    tidemark_store_64(file.base + END_OFFSET_AT, <uint64_t>offset)
    tidemark_store_64(file.base + END_TIMESTAMP_AT, <uint64_t>timestamp_ms)
    tidemark_store_64(
        file.base + COUNTS_AT, <uint64_t>slots_used << 32 | <uint64_t>(first_number + count)
    )
    return count


# -- look-up ---------------------------------------------------------------------------------------


cdef int64_t clamped(value):
    if value > INT64_MAX:
        return INT64_MAX
    if value < INT64_MIN:
        return INT64_MIN
    return value


def look_up(
    view, slots, entries, key_hash, begin_ms, end_ms, hits_max, first, entries_max
):
    cdef View found = view_of(view, slots, entries, False)
    cdef const File *file = &found.file
    cdef int64_t begin = clamped(begin_ms)
    cdef int64_t end = clamped(end_ms)
    cdef int64_t wanted_max = clamped(hits_max)
    cdef int64_t seen_max = clamped(entries_max)
    cdef int64_t begin_with = clamped(first)
    cdef int64_t number, newest, time_ms, hit_count = 0, seen = 0
    cdef uint64_t file_begin_ms
    cdef uint32_t slot_value
    cdef int32_t wanted
    cdef bint is_beyond
    cdef Entry entry
    cdef list hits = []
    if not 0 <= key_hash <= HASH_MAX:
        raise ValueError(f"key hash {key_hash} is not in 0…{HASH_MAX}")
    wanted = key_hash
    # Load the slot before the count: see the pure implementation.
    slot_value = tidemark_load_32(
        file.slots_at + SLOT_SIZE * <uint64_t>(<uint32_t>wanted % file.slots)
    )
    newest = next_entry_of(tidemark_load_64(file.base + COUNTS_AT))
    if newest <= 1:
        return hits, 0, 0
    if newest > file.entries - 1:
        newest = file.entries - 1
    file_begin_ms = tidemark_load_64(file.base + BEGIN_TIMESTAMP_AT)
    if begin_with:
        number = begin_with if 0 < begin_with <= newest else 0
    else:
        number = newest_visible(file, slot_value, newest)
    while number > 0 and hit_count < wanted_max and seen < seen_max:
        seen += 1
        get_entry(file, number, &entry)
        if entry.seconds < 0:
            return hits, 0, seen
        # The sum can only overflow upwards, and is then after every end.
        time_ms = <int64_t>(file_begin_ms + <uint64_t>entry.seconds * 1000)
        is_beyond = <int64_t>file_begin_ms > 0 and time_ms < 0
        if entry.key_hash == wanted and not is_beyond and begin <= time_ms <= end:
            hits.append(entry.offset)
            hit_count += 1
        if not 0 < entry.previous < number or (time_ms < begin and not is_beyond):
            return hits, 0, seen
        number = entry.previous
    return hits, number, seen


cdef int64_t first_entry_at(const File *file, int64_t count, int64_t offset) noexcept nogil:
    cdef int64_t low = 1, high = count + 1, middle
    while low < high:
        middle = (low + high) // 2
        if <int64_t>tidemark_get_64(file.entries_at + ENTRY_SIZE * middle + 4) < offset:
            low = middle + 1
        else:
            high = middle
    return low


def held_rows(view, slots, entries, rows, first, end):
    cdef View found = view_of(view, slots, entries, False)
    cdef Py_buffer borrowed
    cdef Py_ssize_t count
    cdef int64_t result
    PyObject_GetBuffer(rows, &borrowed, PyBUF_SIMPLE)
    try:
        count = borrowed.len // ROW_SIZE
        if borrowed.len % ROW_SIZE or not 0 <= first <= end <= count:
            raise NoRow(f"rows {first} to {end} of {count}")
        result = held(&found.file, <const uint8_t *>borrowed.buf, first, end)
    finally:
        PyBuffer_Release(&borrowed)
    return result


cdef int64_t held(const File *file, const uint8_t *rows, int64_t first, int64_t end) noexcept nogil:
    cdef int64_t count = visible_count(file)
    cdef int64_t group = 0, group_end = 0, candidate = 0
    cdef int64_t number, offset, key_hash, at, before = 0
    cdef Entry entry
    for number in range(first, end):
        memcpy(&offset, rows + ROW_SIZE * number, 8)
        memcpy(&key_hash, rows + ROW_SIZE * number + 16, 8)
        if number == first or offset != before:
            if number == first or offset < before:
                group = first_entry_at(file, count, offset)
            else:
                group = group_end
                while group <= count:
                    get_entry(file, group, &entry)
                    if entry.offset >= offset:
                        break
                    group += 1
            group_end = group
            while group_end <= count:
                get_entry(file, group_end, &entry)
                if entry.offset != offset:
                    break
                group_end += 1
            candidate = group
            before = offset
        at = find_hash(file, candidate, group_end, key_hash)
        if at == 0:
            at = find_hash(file, group, candidate, key_hash)
        if at == 0:
            return number
        candidate = at + 1
    return end


cdef inline int64_t find_hash(
    const File *file, int64_t start, int64_t end, int64_t key_hash
) noexcept nogil:
    """Return the number of the first entry of [start, end) with the hash; 0 if there is none."""
    cdef int64_t number
    for number in range(start, end):
        if <int32_t>tidemark_get_32(file.entries_at + ENTRY_SIZE * number) == key_hash:
            return number
    return 0


def chains_are_sound(view, slots, entries, first):
    cdef View found = view_of(view, slots, entries, False)
    cdef const File *file = &found.file
    cdef int64_t count = visible_count(file)
    cdef int64_t start
    cdef uint32_t *newest
    cdef bint is_sound
    if first > count:
        return True
    start = first if first > 1 else 1
    newest = <uint32_t *>calloc(file.slots, sizeof(uint32_t))
    if newest == NULL:
        raise MemoryError
    with nogil:
        is_sound = sound_from(file, newest, start, count)
    free(newest)
    return is_sound


cdef bint sound_from(
    const File *file, uint32_t *newest, int64_t first, int64_t count
) noexcept nogil:
    """newest: one zero per slot; receives the number of the slot's newest entry."""
    cdef int64_t number, ahead, before = 0
    cdef uint32_t slot
    cdef Entry entry
    for number in range(first, count + 1):
        ahead = number + AHEAD
        if ahead <= count:
            slot = tidemark_get_32(file.entries_at + ENTRY_SIZE * ahead) % file.slots
            tidemark_fetch(newest + slot)
        get_entry(file, number, &entry)
        if entry.key_hash < 0 or entry.seconds < 0 or entry.offset < before:
            return False
        slot = <uint32_t>entry.key_hash % file.slots
        if newest[slot] == 0:
            if not 0 <= entry.previous < first:
                return False
        elif entry.previous != <int64_t>newest[slot]:
            return False
        newest[slot] = <uint32_t>number
        before = entry.offset
    for slot in range(file.slots):
        if newest[slot] != 0 and newest[slot] != newest_visible(
            file, tidemark_load_32(file.slots_at + SLOT_SIZE * <uint64_t>slot), count
        ):
            return False
    return True
