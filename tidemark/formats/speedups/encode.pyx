"""Native implementation of ``tidemark.formats.runs``, which documents the contracts.

Unusual or invalid input (a topic that is not UTF-8, a number that does not fit its field, a damaged
entry, a buffer of another shape) is passed to the pure implementation, which accepts it or raises
the error, so the results are the same by construction. A first pass over the entries checks every
length and sums up the exact size; the buffer is written only after it. The entries are ``bytes``,
which do not change in between.
"""

from cpython.buffer cimport (
    PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_CheckBuffer, PyObject_GetBuffer, Py_buffer
)
from cpython.bytes cimport (
    PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
)
from cpython.long cimport PyLong_AsLongLongAndOverflow, PyLong_CheckExact
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from cpython.tuple cimport PyTuple_GET_ITEM, PyTuple_GET_SIZE
from cpython.unicode cimport PyUnicode_CheckExact
from libc.stdint cimport (
    INT32_MAX, INT32_MIN, UINT32_MAX, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
)
from libc.string cimport memchr, memcmp, memcpy, memset

from tidemark.formats import inner_batch, runs as original
from tidemark.formats.hosts import Host
from tidemark.formats.runs import Run

cdef extern from "Python.h":
    const char *PyUnicode_AsUTF8AndSize(object text, Py_ssize_t *size) except NULL

cdef extern from "bigendian.h":
    void tidemark_put_16(uint8_t *at, uint16_t value) nogil
    void tidemark_put_32(uint8_t *at, uint32_t value) nogil
    void tidemark_put_64(uint8_t *at, uint64_t value) nogil

cdef extern from "entry.h":
    ctypedef struct Entry "tidemark_entry":
        const uint8_t *body
        const uint8_t *properties
        size_t body_size
        size_t properties_size
        const uint8_t *end
    enum:
        TIDEMARK_ENTRY_FLAG_AT
        TIDEMARK_ENTRY_OVERHEAD
    bint tidemark_read_entry(const uint8_t *at, size_t room, Entry *entry) nogil

cdef extern from "crc32.h":
    void tidemark_crc32_prepare()
    uint32_t tidemark_crc32(uint32_t crc, const uint8_t *data, size_t size) nogil
    uint32_t tidemark_crc32_joined(uint32_t first, uint32_t second, size_t size) nogil
    enum:
        TIDEMARK_CRC_JOINED_MIN

tidemark_crc32_prepare()

cdef enum:
    PROPERTIES_SIZE_MAX = 32767
    TOPIC_SIZE_V1_MAX = 127
    TOPIC_SIZE_MAX = 255
    HEAD_SIZE_V4 = 88  # of a record up to its body if both hosts are IPv4 (2.1)
    HEAD_SIZE_MAX = 112
    CRC_SLOT_SIZE = 20
    CRC_NAME_SIZE = 9
    PAIR_END = 0x02
    MASK_31 = 0x7FFFFFFF
    GIL_SIZE = 65536  # bytes of records from which the GIL is released
    BATCH_SYS_FLAGS = 0xC0

cdef Py_ssize_t BASE_AT = inner_batch.BASE_AT
cdef Py_ssize_t BASE_DIGITS = inner_batch.BASE_DIGITS

cdef const char *CRC_NAME = b"__CRC32#\x01"
cdef const uint32_t MAGIC_V1 = 0xDAA320A7
cdef const uint32_t MAGIC_V2 = 0xDAA320AB
cdef const int64_t I64_MAX = 0x7FFFFFFFFFFFFFFF

cdef char[200] PAIRS
"""The two digits of each number from 0 to 99, the less significant one first."""
for _digit in range(200):
    PAIRS[_digit] = 0x30 + (_digit // 20 if _digit % 2 else _digit // 2 % 10)


cdef struct Address:
    const uint8_t *at
    Py_ssize_t size  # 4 or 16
    int32_t port


cdef struct Plan:
    # One run in C. The pointers are borrowed from objects held by the caller's tuple of runs.
    const uint8_t *entries
    Py_ssize_t entries_size
    Py_ssize_t count
    const uint8_t *topic
    Py_ssize_t topic_size
    Address born
    Address store
    int32_t queue_id
    int32_t sys_flag
    int32_t reconsume_times
    int64_t born_timestamp_ms
    int64_t prepared_transaction_offset
    int64_t first
    int64_t size  # total bytes of its records
    bint strips  # whether some entry has a record CRC property
    const uint8_t *batch_properties  # of the inner batch that the run becomes; NULL if it does not
    Py_ssize_t batch_properties_size
    Py_ssize_t record_count


def runs_size(runs, *, bint record_crc):
    cdef Plan plan
    cdef int64_t total = 0
    cdef tuple held = tuple(runs)
    for run in held:
        if not plan_run(run, 0, record_crc, &plan) or plan.size > I64_MAX - total:
            return original.runs_size(held, record_crc=record_crc)
        total += plan.size
    return total


def encode_runs(
    buffer, runs, *, firsts, physical_offset, store_timestamp_ms, bint record_crc
):
    cdef tuple held = tuple(runs)
    cdef tuple numbers = tuple(firsts)
    made = encoded(buffer, held, numbers, physical_offset, store_timestamp_ms, record_crc)
    if made is not None:
        return made
    return original.encode_runs(
        buffer,
        held,
        firsts=numbers,
        physical_offset=physical_offset,
        store_timestamp_ms=store_timestamp_ms,
        record_crc=record_crc,
    )


def body_size_counts(entries, bounds):
    cdef Py_ssize_t *counts
    cdef int64_t *limits
    cdef Py_ssize_t number, bound_count, total = 0
    cdef const uint8_t *at
    cdef const uint8_t *end
    cdef Entry entry
    cdef tuple held = tuple(bounds)
    bound_count = len(held)
    if not PyBytes_CheckExact(entries):
        return original.body_size_counts(entries, held)
    # One allocation for both arrays: the limits, then the counts, which are one more.
    limits = <int64_t *>PyMem_Malloc((2 * bound_count + 1) * sizeof(int64_t))
    if limits == NULL:
        raise MemoryError
    counts = <Py_ssize_t *>(limits + bound_count)
    try:
        for number in range(bound_count):
            if not number_64(held[number], &limits[number]):
                return original.body_size_counts(entries, held)
        for number in range(bound_count + 1):
            counts[number] = 0
        at = <const uint8_t *>PyBytes_AS_STRING(entries)
        end = at + PyBytes_GET_SIZE(entries)
        while at < end:
            if not tidemark_read_entry(at, end - at, &entry):
                return original.body_size_counts(entries, held)
            counts[place_of(entry.body_size, limits, bound_count)] += 1
            total += entry.body_size  # at most the size of the entries
            at = entry.end
        found = [counts[number] for number in range(bound_count + 1)]
        found.append(total)
        return found
    finally:
        PyMem_Free(limits)


def entry_starts(entries):
    cdef Py_buffer view
    cdef Py_ssize_t count = 0
    cdef const uint8_t *begin
    cdef const uint8_t *at
    cdef const uint8_t *end
    cdef uint32_t *starts
    cdef Entry entry
    PyObject_GetBuffer(entries, &view, PyBUF_SIMPLE)
    try:
        if view.len > <Py_ssize_t>UINT32_MAX:
            return original.entry_starts(entries)
        begin = at = <const uint8_t *>view.buf
        end = begin + view.len
        starts = <uint32_t *>PyMem_Malloc(
            (view.len // TIDEMARK_ENTRY_OVERHEAD + 1) * sizeof(uint32_t)
        )
        if starts == NULL:
            raise MemoryError
        try:
            while at < end:
                if not tidemark_read_entry(at, end - at, &entry):
                    return original.entry_starts(entries)
                starts[count] = <uint32_t>(at - begin)
                count += 1
                at = entry.end
            return PyBytes_FromStringAndSize(<const char *>starts, count * sizeof(uint32_t))
        finally:
            PyMem_Free(starts)
    finally:
        PyBuffer_Release(&view)


cdef object encoded(
    object buffer,
    tuple runs,
    tuple firsts,
    object physical_offset,
    object store_timestamp_ms,
    bint record_crc,
):
    """Return the result of ``encode_runs``; None, without a write, if the pure one must run."""
    cdef Py_ssize_t run_count = PyTuple_GET_SIZE(runs), number, record_count = 0
    cdef int64_t total = 0, at, stored_ms, first
    cdef Plan *plans
    cdef Py_buffer view
    if run_count != PyTuple_GET_SIZE(firsts) or not PyObject_CheckBuffer(buffer):
        return None
    if not number_64(physical_offset, &at) or not number_64(store_timestamp_ms, &stored_ms):
        return None
    plans = <Plan *>PyMem_Malloc((run_count + 1) * sizeof(Plan))
    if plans == NULL:
        raise MemoryError
    try:
        for number in range(run_count):
            if not number_64(<object>PyTuple_GET_ITEM(firsts, number), &first):
                return None
            run = <object>PyTuple_GET_ITEM(runs, number)
            if not plan_run(run, first, record_crc, &plans[number]):
                return None
            if plans[number].size > I64_MAX - total:
                return None
            total += plans[number].size
            record_count += plans[number].record_count
        if at > I64_MAX - total:
            return None
        try:
            PyObject_GetBuffer(buffer, &view, PyBUF_WRITABLE)
        except (BufferError, TypeError):
            return None  # read-only or not contiguous
        try:
            # A view of larger items has fewer items than bytes, and its slices are not bytes.
            if view.len < total or len(buffer) != view.len:
                return None
            sizes = PyBytes_FromStringAndSize(NULL, record_count * 4)
            write_all(
                <uint8_t *>view.buf,
                plans,
                run_count,
                <uint8_t *>PyBytes_AS_STRING(sizes),
                at,
                stored_ms,
                record_crc,
                total >= GIL_SIZE,
            )
            return sizes
        finally:
            PyBuffer_Release(&view)
    finally:
        PyMem_Free(plans)


cdef void write_all(
    uint8_t *out,
    const Plan *plans,
    Py_ssize_t run_count,
    uint8_t *sizes,
    int64_t physical_offset,
    int64_t stored_ms,
    bint record_crc,
    bint lets_others_run,
) noexcept:
    if lets_others_run:
        with nogil:
            write_runs(out, plans, run_count, sizes, physical_offset, stored_ms, record_crc)
    else:
        write_runs(out, plans, run_count, sizes, physical_offset, stored_ms, record_crc)


cdef bint plan_run(object run, int64_t first, bint record_crc, Plan *plan) except -1:
    """Read a run and measure its records; False if the pure implementation must handle it."""
    if type(run) is not Run or PyTuple_GET_SIZE(run) != 11:
        return False
    topic, entries = <object>PyTuple_GET_ITEM(run, 0), <object>PyTuple_GET_ITEM(run, 2)
    of_batch = <object>PyTuple_GET_ITEM(run, 10)
    if (
        not PyUnicode_CheckExact(topic)
        or not PyBytes_CheckExact(entries)
        or not PyBytes_CheckExact(of_batch)
    ):
        return False
    try:
        plan.topic = <const uint8_t *>PyUnicode_AsUTF8AndSize(topic, &plan.topic_size)
    except UnicodeEncodeError:
        return False
    if plan.topic_size > TOPIC_SIZE_MAX:
        return False
    cdef int64_t count
    if not (
        number_32(<object>PyTuple_GET_ITEM(run, 1), &plan.queue_id)
        and number_64(<object>PyTuple_GET_ITEM(run, 3), &count)
        and read_host(<object>PyTuple_GET_ITEM(run, 4), &plan.born)
        and read_host(<object>PyTuple_GET_ITEM(run, 5), &plan.store)
        and number_64(<object>PyTuple_GET_ITEM(run, 6), &plan.born_timestamp_ms)
        and number_32(<object>PyTuple_GET_ITEM(run, 7), &plan.sys_flag)
        and number_32(<object>PyTuple_GET_ITEM(run, 8), &plan.reconsume_times)
        and number_64(<object>PyTuple_GET_ITEM(run, 9), &plan.prepared_transaction_offset)
    ):
        return False
    plan.entries = <const uint8_t *>PyBytes_AS_STRING(entries)
    plan.entries_size = PyBytes_GET_SIZE(entries)
    if count < 0 or count > plan.entries_size:
        return False  # an entry has at least 22 bytes: the count is too large
    plan.count = count
    plan.first = first
    if first < 0 or first > I64_MAX - count:
        return False
    plan.record_count = count
    plan.batch_properties = NULL
    plan.batch_properties_size = PyBytes_GET_SIZE(of_batch)
    if plan.batch_properties_size:
        plan.batch_properties = <const uint8_t *>PyBytes_AS_STRING(of_batch)
        return plan_batch(plan, record_crc)
    return measure(plan, record_crc)


cdef bint plan_batch(Plan *plan, bint record_crc) noexcept nogil:
    """Measure a run that becomes an inner batch; False if the pure implementation must handle it."""
    cdef Py_ssize_t stored = plan.batch_properties_size + (CRC_SLOT_SIZE if record_crc else 0)
    cdef int64_t size = fixed_size(plan) + plan.entries_size + stored
    if (
        plan.count == 0
        or plan.batch_properties_size < BASE_AT + BASE_DIGITS
        or plan.batch_properties[plan.batch_properties_size - 1] != PAIR_END
        or holds_crc(plan.batch_properties, plan.batch_properties_size)
        or stored > PROPERTIES_SIZE_MAX
        or size > INT32_MAX
    ):
        return False
    plan.sys_flag |= BATCH_SYS_FLAGS
    plan.record_count = 1
    plan.size = size
    plan.strips = False
    return True


cdef int64_t fixed_size(const Plan *plan) noexcept nogil:
    """Size of a record of the run without body and properties."""
    return (
        72 + plan.born.size + plan.store.size + 8
        + (2 if plan.topic_size > TOPIC_SIZE_V1_MAX else 1) + plan.topic_size + 2
    )


cdef bint read_host(object value, Address *address) except -1:
    if type(value) is not Host or PyTuple_GET_SIZE(value) != 2:
        return False
    raw = <object>PyTuple_GET_ITEM(value, 0)
    if not PyBytes_CheckExact(raw) or PyBytes_GET_SIZE(raw) not in (4, 16):
        return False
    address.at = <const uint8_t *>PyBytes_AS_STRING(raw)
    address.size = PyBytes_GET_SIZE(raw)
    return number_32(<object>PyTuple_GET_ITEM(value, 1), &address.port)


cdef bint number_64(object value, int64_t *number) except -1:
    cdef int overflow = 0
    if not PyLong_CheckExact(value):
        return False
    number[0] = PyLong_AsLongLongAndOverflow(value, &overflow)
    return overflow == 0


cdef bint number_32(object value, int32_t *number) except -1:
    cdef int64_t wide = 0
    if not number_64(value, &wide) or wide < INT32_MIN or wide > INT32_MAX:
        return False
    number[0] = <int32_t>wide
    return True


cdef bint measure(Plan *plan, bint record_crc) noexcept nogil:
    """Set size and strips; False if an entry is damaged or too large, or the count is wrong."""
    cdef const uint8_t *at = plan.entries
    cdef const uint8_t *end = at + plan.entries_size
    cdef Entry entry
    cdef Py_ssize_t found = 0, stored
    cdef int64_t record, total = 0, fixed = fixed_size(plan)
    cdef bint strips = False, ends_pair
    while at < end:
        if not tidemark_read_entry(at, end - at, &entry):
            return False
        at = entry.end
        stored = entry.properties_size
        ends_pair = stored > 0 and entry.properties[stored - 1] == PAIR_END
        if holds_crc(entry.properties, stored):
            strips = True
            stored = without_crc(NULL, entry.properties, stored, &ends_pair)
        if record_crc:
            stored += CRC_SLOT_SIZE + (stored > 0 and not ends_pair)
        record = fixed + <int64_t>entry.body_size + stored
        if stored > PROPERTIES_SIZE_MAX or record > INT32_MAX:
            return False
        total += record
        found += 1
    plan.size = total
    plan.strips = strips
    return found == plan.count


cdef bint holds_crc(const uint8_t *raw, Py_ssize_t size) noexcept nogil:
    """Return whether the bytes contain the name of the record CRC property."""
    cdef const uint8_t *end = raw + size
    cdef const uint8_t *mark = raw
    while True:
        # "#" is rare in properties, and memchr checks many bytes at a time.
        mark = <const uint8_t *>memchr(mark, c"#", end - mark)
        if mark == NULL:
            return False
        if (
            mark - raw >= CRC_NAME_SIZE - 2
            and end - mark >= 2
            and memcmp(mark - (CRC_NAME_SIZE - 2), CRC_NAME, CRC_NAME_SIZE) == 0
        ):
            return True
        mark += 1


cdef Py_ssize_t without_crc(
    uint8_t *out, const uint8_t *raw, Py_ssize_t size, bint *ends_pair
) noexcept nogil:
    """Do ``properties.strip_crc`` into out (NULL: only measure); return the size.

    ends_pair: set to whether the last remaining byte is 0x02.
    """
    cdef Py_ssize_t at = 0, end, written = 0, kept = 0
    cdef const uint8_t *found
    cdef bint is_crc
    ends_pair[0] = False
    while True:
        found = <const uint8_t *>memchr(raw + at, PAIR_END, size - at)
        end = size if found == NULL else found - raw
        is_crc = end - at >= CRC_NAME_SIZE and memcmp(raw + at, CRC_NAME, CRC_NAME_SIZE) == 0
        if not is_crc:
            if kept:
                if out != NULL:
                    out[written] = PAIR_END
                written += 1
                ends_pair[0] = True
            if end > at:
                if out != NULL:
                    memcpy(out + written, raw + at, end - at)
                written += end - at
                ends_pair[0] = False
            kept += 1
        if found == NULL:
            break
        at = end + 1
    if kept and is_crc:
        if out != NULL:
            out[written] = PAIR_END
        written += 1
        ends_pair[0] = True
    return written


cdef void write_runs(
    uint8_t *out,
    const Plan *plans,
    Py_ssize_t run_count,
    uint8_t *sizes,
    int64_t physical_offset,
    int64_t stored_ms,
    bint record_crc,
) noexcept nogil:
    """Write all records. out has room for all plans' sizes, sizes for 4 bytes per record."""
    cdef Py_ssize_t number, index
    cdef int64_t written = 0
    cdef uint32_t record
    cdef const uint8_t *at
    cdef const uint8_t *end
    cdef const uint8_t *flag
    cdef Entry entry
    cdef uint8_t[HEAD_SIZE_MAX] head
    cdef Py_ssize_t head_size
    for number in range(run_count):
        head_size = make_head(head, &plans[number], stored_ms)
        at = plans[number].entries
        end = at + plans[number].entries_size
        if plans[number].batch_properties != NULL:
            record = write_batch(
                out + written, &plans[number], head, head_size, physical_offset + written, record_crc
            )
            memcpy(sizes, &record, 4)
            sizes += 4
            written += record
            continue
        for index in range(plans[number].count):
            if not tidemark_read_entry(at, end - at, &entry):
                return  # impossible: ``measure`` has read all entries
            flag = at + TIDEMARK_ENTRY_FLAG_AT
            at = entry.end
            record = write_record(
                out + written,
                flag,
                &entry,
                &plans[number],
                head,
                head_size,
                plans[number].first + index,
                physical_offset + written,
                record_crc,
            )
            memcpy(sizes, &record, 4)
            sizes += 4
            written += record


cdef uint32_t write_batch(
    uint8_t *out,
    const Plan *plan,
    const uint8_t *head,
    Py_ssize_t head_size,
    int64_t physical_offset,
    bint record_crc,
) noexcept nogil:
    """Write the run as one record whose body is its entries; return the record's size."""
    cdef uint8_t[4] flag
    cdef Entry whole
    memset(flag, 0, 4)
    whole.body = plan.entries
    whole.body_size = plan.entries_size
    whole.properties = plan.batch_properties
    whole.properties_size = plan.batch_properties_size
    return write_record(
        out, flag, &whole, plan, head, head_size, plan.first, physical_offset, record_crc
    )


cdef Py_ssize_t make_head(uint8_t *head, const Plan *plan, int64_t stored_ms) noexcept nogil:
    """Write the head up to the body, common to all records of a run; return its size."""
    cdef Py_ssize_t born = plan.born.size, store = plan.store.size, at
    cdef uint32_t sys_flag = <uint32_t>plan.sys_flag & ~<uint32_t>0x30
    sys_flag |= (0x10 if born == 16 else 0) | (0x20 if store == 16 else 0)
    tidemark_put_32(head + 4, MAGIC_V2 if plan.topic_size > TOPIC_SIZE_V1_MAX else MAGIC_V1)
    tidemark_put_32(head + 12, <uint32_t>plan.queue_id)
    tidemark_put_32(head + 36, sys_flag)
    tidemark_put_64(head + 40, <uint64_t>plan.born_timestamp_ms)
    memcpy(head + 48, plan.born.at, born)
    tidemark_put_32(head + 48 + born, <uint32_t>plan.born.port)
    at = 52 + born
    tidemark_put_64(head + at, <uint64_t>stored_ms)
    memcpy(head + at + 8, plan.store.at, store)
    at += 8 + store
    tidemark_put_32(head + at, <uint32_t>plan.store.port)
    tidemark_put_32(head + at + 4, <uint32_t>plan.reconsume_times)
    tidemark_put_64(head + at + 8, <uint64_t>plan.prepared_transaction_offset)
    return at + 20


cdef uint32_t write_record(
    uint8_t *out,
    const uint8_t *flag,
    const Entry *entry,
    const Plan *plan,
    const uint8_t *head,
    Py_ssize_t head_size,
    int64_t queue_offset,
    int64_t physical_offset,
    bint record_crc,
) noexcept nogil:
    """Write one record of the size computed by ``measure``; return its size."""
    cdef size_t raw_size = entry.properties_size
    cdef uint8_t *at
    cdef uint8_t *size_at
    cdef uint32_t size
    cdef bint ends_pair = raw_size > 0 and entry.properties[raw_size - 1] == PAIR_END
    if head_size == HEAD_SIZE_V4:
        memcpy(out, head, HEAD_SIZE_V4)  # constant size: compiles to a few moves
    else:
        memcpy(out, head, head_size)
    cdef uint32_t body_crc = tidemark_crc32(0, entry.body, entry.body_size)
    tidemark_put_32(out + 8, body_crc & MASK_31)
    memcpy(out + 16, flag, 4)
    tidemark_put_64(out + 20, <uint64_t>queue_offset)
    tidemark_put_64(out + 28, <uint64_t>physical_offset)
    at = out + head_size
    tidemark_put_32(at - 4, <uint32_t>entry.body_size)
    memcpy(at, entry.body, entry.body_size)
    at += entry.body_size
    if plan.topic_size > TOPIC_SIZE_V1_MAX:
        tidemark_put_16(at, <uint16_t>plan.topic_size)
        at += 2
    else:
        at[0] = <uint8_t>plan.topic_size
        at += 1
    memcpy(at, plan.topic, plan.topic_size)
    size_at = at + plan.topic_size
    at = size_at + 2
    if plan.strips and holds_crc(entry.properties, raw_size):
        raw_size = without_crc(at, entry.properties, raw_size, &ends_pair)
    else:
        memcpy(at, entry.properties, raw_size)
        if plan.batch_properties != NULL:
            put_base(at + BASE_AT, <uint64_t>queue_offset)
    at += raw_size
    if record_crc:
        if raw_size and not ends_pair:
            at[0] = PAIR_END
            at += 1
        at += CRC_SLOT_SIZE
    size = <uint32_t>(at - out)
    tidemark_put_32(out, size)
    tidemark_put_16(size_at, <uint16_t>(at - size_at - 2))
    if record_crc:
        at -= CRC_SLOT_SIZE
        put_crc_slot(at, record_crc_of(out, head_size, entry.body_size, body_crc, at - out))
    return size


cdef uint32_t record_crc_of(
    const uint8_t *record, size_t body_at, size_t body_size, uint32_t body_crc, size_t covered
) noexcept nogil:
    """Return the record CRC over the first covered bytes; a large body is not read again."""
    cdef size_t body_end = body_at + body_size
    cdef uint32_t crc
    if body_size < TIDEMARK_CRC_JOINED_MIN:
        return tidemark_crc32(0, record, covered) & MASK_31
    crc = tidemark_crc32_joined(tidemark_crc32(0, record, body_at), body_crc, body_size)
    return tidemark_crc32(crc, record + body_end, covered - body_end) & MASK_31


cdef void put_base(uint8_t *at, uint64_t base) noexcept nogil:
    """Write the queue offset of a batch's first message in BASE_DIGITS digits."""
    cdef Py_ssize_t number
    for number in range(BASE_DIGITS - 1, -1, -1):
        at[number] = <uint8_t>(c"0" + base % 10)
        base //= 10


cdef void put_crc_slot(uint8_t *at, uint32_t crc) noexcept nogil:
    """Write the record CRC property (2.6): ten digits, least significant first."""
    cdef uint32_t high = crc // 100_000_000
    cdef uint32_t low = crc - high * 100_000_000
    cdef uint32_t upper = low // 10_000
    cdef uint32_t lower = low - upper * 10_000
    memcpy(at, CRC_NAME, CRC_NAME_SIZE)
    at += CRC_NAME_SIZE
    memcpy(at, PAIRS + 2 * (lower % 100), 2)
    memcpy(at + 2, PAIRS + 2 * (lower // 100), 2)
    memcpy(at + 4, PAIRS + 2 * (upper % 100), 2)
    memcpy(at + 6, PAIRS + 2 * (upper // 100), 2)
    memcpy(at + 8, PAIRS + 2 * high, 2)
    at[10] = PAIR_END


cdef Py_ssize_t place_of(int64_t size, const int64_t *bounds, Py_ssize_t count) noexcept nogil:
    """Return the index of the first bound ≥ size, like ``bisect.bisect_left``."""
    cdef Py_ssize_t low = 0, high = count, middle
    while low < high:
        middle = (low + high) // 2
        if bounds[middle] < size:
            low = middle + 1
        else:
            high = middle
    return low
