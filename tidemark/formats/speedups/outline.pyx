"""Native implementation of ``outline.outline_records``, ``unpack_rows`` and ``property_values``.

``record.h`` checks records; no Python object is created per record. Cases that it leaves open (a
doubtful record CRC, a value that is not ASCII) are passed to the pure implementation.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer, Py_buffer
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport INT64_MAX, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memchr, memcmp, memcpy

import struct

from tidemark.formats import outline as pure, properties
from tidemark.formats.inner_batch import message_count
from tidemark.formats.outline import Outlines, Unpacked, Values
from tidemark.formats.record import topic_text
from tidemark.formats.record_check import record_crc_fault

cdef extern from "bigendian.h":
    uint32_t tidemark_get_32(const uint8_t *data) nogil
    uint64_t tidemark_get_64(const uint8_t *data) nogil

cdef extern from "record.h":
    void tidemark_crc32_prepare()

    ctypedef struct tidemark_record:
        uint32_t size
        int32_t sys_flag
        int32_t queue_id
        int64_t queue_offset
        int64_t store_timestamp_ms
        uint32_t body_at
        uint32_t body_size
        uint32_t topic_at
        uint32_t topic_size
        uint32_t properties_at
        uint32_t properties_size

    int CHECK_BODY_CRC "TIDEMARK_CHECK_BODY_CRC"
    int CHECK_RECORD_CRC "TIDEMARK_CHECK_RECORD_CRC"
    int CHECK_POSITION "TIDEMARK_CHECK_POSITION"
    int REQUIRE_RECORD_CRC "TIDEMARK_REQUIRE_RECORD_CRC"
    int NO_RECORD "TIDEMARK_NO_RECORD"
    int ASK "TIDEMARK_ASK"

    int tidemark_judge_record(
        const uint8_t *data, size_t room, int64_t at, int checks, tidemark_record *found
    ) nogil
    void tidemark_prefetch_record(
        const uint8_t *data, size_t room, const tidemark_record *found
    ) nogil
    uint64_t tidemark_table_hash(
        const uint8_t *data, size_t size, int32_t queue_id, uint64_t seed
    ) nogil

tidemark_crc32_prepare()

cdef enum:
    SEATS = 256
    ROOM_AT_FIRST = 1024
    INNER_BATCH = 0x80
    SYS_FLAGS = 0xC0
    PHYSICAL_OFFSET_AT = 28
    BORN_MS_AT = 40
    RECONSUME_BEFORE = 16  # bytes before the body
    ENTRY_OVERHEAD = 22
    ENTRY_BODY_SIZE_AT = 16

cdef struct Row:
    int64_t start
    int32_t size
    int32_t body_at
    int32_t body_size
    int32_t topic
    int32_t properties_at
    int32_t properties_size
    int32_t sound
    int32_t sys_flag
    int32_t number
    int32_t torn
    int32_t queue
    int32_t reconsume_times
    int64_t queue_offset
    int64_t physical_offset
    int64_t born_ms
    int64_t store_ms

assert sizeof(Row) == pure.ROW.size

cdef struct Seat:
    # A recent topic, as bytes of the view, and its number. The slot is free if data is NULL.
    const uint8_t *data
    uint32_t size
    int64_t number


cdef int32_t number_of(bytes raw, dict numbers, list names, object topics) except -2:
    """Return the topic's number; -1 if the topic is not requested."""
    found = numbers.get(raw)
    if found is None:
        text = topic_text(raw)
        found = -1
        if topics is None or text in topics:
            found = len(names)
            names.append(text)
        numbers[raw] = found
    return found


cdef int32_t soundness(
    view, const uint8_t *data, int64_t start, size_t room, int checks, bint required
) except -2:
    """Return whether the CRCs of the record at data, whose structure is valid, match."""
    cdef tidemark_record found
    cdef int judged = tidemark_judge_record(data, room, 0, checks, &found)
    if judged == NO_RECORD:
        return 0
    if judged == ASK:
        return not record_crc_fault(
            view, start, found.size, found.properties_size, required=required
        )
    return 1


def outline_records(view, *, at, until, records_max, verify=None, topics=None):
    cdef Py_buffer borrowed
    cdef tidemark_record found
    cdef Seat seats[SEATS]
    cdef Seat *seat
    cdef Row *rows
    cdef void *larger
    cdef const uint8_t *data
    cdef int shape = 0, checks = 0
    cdef bint verified = False, required = False
    cdef int64_t place = 0, end = 0, limit, seen = 0, left, room = ROOM_AT_FIRST, count = 0
    cdef int32_t number, sound
    cdef size_t size
    cdef dict numbers = {}
    cdef list names = []
    if at is not None:
        if not 0 <= at <= INT64_MAX - len(view):
            return pure.outline_records(
                view,
                at=at,
                until=until,
                records_max=records_max,
                verify=verify,
                topics=topics,
            )
        place, shape = at, CHECK_POSITION
    if verify is not None:
        check_body, check_record, _, required = verify
        verified = True
        checks = (
            (CHECK_BODY_CRC if check_body else 0)
            | (CHECK_RECORD_CRC if check_record else 0)
            | (REQUIRE_RECORD_CRC if required else 0)
        )
    left = max(0, min(records_max, INT64_MAX))
    PyObject_GetBuffer(view, &borrowed, PyBUF_SIMPLE)
    try:
        data = <const uint8_t *>borrowed.buf
        size = <size_t>borrowed.len
        limit = max(0, min(until, borrowed.len))
        for number in range(SEATS):
            seats[number].data = NULL
        rows = <Row *>malloc(<size_t>room * sizeof(Row))
        if rows == NULL:
            raise MemoryError
        try:
            while end < limit and seen < left:
                if (
                    tidemark_judge_record(
                        data + end, size - <size_t>end, place + end, shape, &found
                    )
                    == NO_RECORD
                ):
                    break
                seat = seats + (
                    tidemark_table_hash(data + end + found.topic_at, found.topic_size, 0, 0)
                    % SEATS
                )
                if (
                    seat.data == NULL
                    or seat.size != found.topic_size
                    or memcmp(seat.data, data + end + found.topic_at, found.topic_size) != 0
                ):
                    seat.number = number_of(
                        PyBytes_FromStringAndSize(
                            <const char *>data + end + found.topic_at, found.topic_size
                        ),
                        numbers,
                        names,
                        topics,
                    )
                    seat.data, seat.size = data + end + found.topic_at, found.topic_size
                number = seat.number
                if number >= 0:
                    sound = -1
                    if verified:
                        sound = soundness(
                            view, data + end, end, size - <size_t>end, checks, required
                        )
                    if count == room:
                        room *= 2
                        larger = realloc(rows, <size_t>room * sizeof(Row))
                        if larger == NULL:
                            raise MemoryError
                        rows = <Row *>larger
                    rows[count] = Row(
                        end,
                        <int32_t>found.size,
                        <int32_t>found.body_at,
                        <int32_t>found.body_size,
                        number,
                        <int32_t>found.properties_at,
                        <int32_t>found.properties_size,
                        sound,
                        found.sys_flag,
                        0,
                        data[end + found.size - (1 if found.properties_size else 3)] == 0,
                        found.queue_id,
                        <int32_t>tidemark_get_32(data + end + found.body_at - RECONSUME_BEFORE),
                        found.queue_offset,
                        <int64_t>tidemark_get_64(data + end + PHYSICAL_OFFSET_AT),
                        <int64_t>tidemark_get_64(data + end + BORN_MS_AT),
                        found.store_timestamp_ms,
                    )
                    count += 1
                tidemark_prefetch_record(data + end, size - <size_t>end, &found)
                end += found.size
                seen += 1
            made = PyBytes_FromStringAndSize(
                <const char *>rows, <Py_ssize_t>(count * <int64_t>sizeof(Row))
            )
        finally:
            free(rows)
    finally:
        PyBuffer_Release(&borrowed)
    stop, reason = pure.stopped(view, end, at, until, records_max - seen)
    return Outlines(made, names, seen, end, stop, reason)


cdef int check_batch(const Row *row, int64_t view_size) except -1:
    """Raise ValueError if the batch's fields are not inside the view."""
    if (
        row.start < 0
        or row.size < 0
        or row.body_at < 0
        or row.body_size < 0
        or row.topic < 0
        or row.properties_at < 0
        or row.properties_size < 0
    ):
        raise ValueError("a row has a negative number")
    if (
        row.start > view_size
        or row.start + row.body_at + row.body_size > view_size
        or row.start + row.properties_at + row.properties_size > view_size
    ):
        raise ValueError("a row ends after the view")
    return 0


cdef int64_t batch_count(const Row *row, const uint8_t *record) except -1:
    """Return the number of messages that the batch has by its properties; 0 if it is no batch."""
    raw = PyBytes_FromStringAndSize(
        <const char *>record + row.properties_at, row.properties_size
    )
    return message_count(row.sys_flag, raw, row.queue_offset)


cdef bint unpack_batch(
    const Row *row, const uint8_t *record, int64_t count, Row *messages
) noexcept nogil:
    """Store the rows of the batch's messages; return whether its body holds exactly count."""
    cdef int64_t at = row.body_at, end = at + row.body_size, properties_at, number
    cdef int32_t body_size
    cdef uint32_t properties_size
    for number in range(count):
        if end - at < ENTRY_OVERHEAD:
            return False
        body_size = <int32_t>tidemark_get_32(record + at + ENTRY_BODY_SIZE_AT)
        if body_size < 0 or body_size > end - at - ENTRY_OVERHEAD:
            return False
        properties_at = at + ENTRY_OVERHEAD + body_size
        properties_size = (
            <uint32_t>record[properties_at - 2] << 8 | record[properties_at - 1]
        )
        # The size is an i16: from 0x8000 on it is negative.
        if properties_size > 0x7FFF or properties_size > end - properties_at:
            return False
        messages[number] = row[0]
        messages[number].body_at = <int32_t>(at + ENTRY_BODY_SIZE_AT + 4)
        messages[number].body_size = body_size
        messages[number].properties_at = <int32_t>properties_at
        messages[number].properties_size = <int32_t>properties_size
        messages[number].sys_flag = row.sys_flag & ~SYS_FLAGS
        messages[number].number = <int32_t>number
        at = properties_at + properties_size
    return at == end


def unpack_rows(view, rows):
    cdef Py_buffer borrowed, given
    cdef const Row *row
    cdef const uint8_t *record
    cdef Row *unpacked = NULL
    cdef void *larger
    cdef int64_t index, count, messages, room, used = 0
    if len(rows) % sizeof(Row):
        raise struct.error("rows are not whole")
    damaged = []
    PyObject_GetBuffer(rows, &given, PyBUF_SIMPLE)
    try:
        PyObject_GetBuffer(view, &borrowed, PyBUF_SIMPLE)
        try:
            row = <const Row *>given.buf
            count = given.len // <Py_ssize_t>sizeof(Row)
            room = ROOM_AT_FIRST + count
            unpacked = <Row *>malloc(<size_t>room * sizeof(Row))
            if unpacked == NULL:
                raise MemoryError
            for index in range(count):
                messages = 0
                if row[index].sys_flag & INNER_BATCH:
                    check_batch(row + index, borrowed.len)
                    record = <const uint8_t *>borrowed.buf + row[index].start
                    messages = batch_count(row + index, record)
                if used + max(messages, 1) > room:
                    room = 2 * room + messages
                    larger = realloc(unpacked, <size_t>room * sizeof(Row))
                    if larger == NULL:
                        raise MemoryError
                    unpacked = <Row *>larger
                if messages == 0:
                    unpacked[used] = row[index]
                    used += 1
                elif unpack_batch(row + index, record, messages, unpacked + used):
                    used += messages
                else:
                    damaged.append(index)
            return Unpacked(
                PyBytes_FromStringAndSize(
                    <const char *>unpacked, <Py_ssize_t>(used * <int64_t>sizeof(Row))
                ),
                damaged,
            )
        finally:
            free(unpacked)
            PyBuffer_Release(&borrowed)
    finally:
        PyBuffer_Release(&given)


def property_values(view, rows, *, wanted):
    cdef Py_buffer borrowed, given
    cdef const Row *row
    cdef const uint8_t *at
    cdef const uint8_t *stop
    cdef const uint8_t *value
    cdef const uint8_t *sought
    cdef const uint8_t *last
    cdef size_t sought_size, value_size
    cdef int64_t number, count, room, used = 0
    cdef int32_t *offsets = NULL
    cdef uint8_t *out = NULL
    cdef uint8_t *present = NULL
    cdef uint8_t others
    cdef void *larger
    cdef size_t index
    cdef bytes needle = wanted + b"\x01"
    sought, sought_size = needle, <size_t>len(needle)
    if len(rows) % sizeof(Row):
        raise struct.error("rows are not whole")
    PyObject_GetBuffer(rows, &given, PyBUF_SIMPLE)
    try:
        PyObject_GetBuffer(view, &borrowed, PyBUF_SIMPLE)
        try:
            row = <const Row *>given.buf
            count = given.len // <Py_ssize_t>sizeof(Row)
            room = max(ROOM_AT_FIRST, 16 * count)
            offsets = <int32_t *>malloc(<size_t>(count + 1) * sizeof(int32_t))
            present = <uint8_t *>malloc(<size_t>count + 1)
            out = <uint8_t *>malloc(<size_t>room)
            if offsets == NULL or present == NULL or out == NULL:
                raise MemoryError
            offsets[0] = 0
            for number in range(count):
                if (
                    row[number].start < 0
                    or row[number].properties_at < 0
                    or row[number].properties_size < 0
                    or row[number].size < 0
                ):
                    raise ValueError("a row has a negative number")
                if (
                    row[number].start > borrowed.len
                    or row[number].start + row[number].properties_at
                    + row[number].properties_size > borrowed.len
                ):
                    raise ValueError("a row ends behind the view")
                at = (
                    <const uint8_t *>borrowed.buf + row[number].start + row[number].properties_at
                )
                last = at + row[number].properties_size
                value, value_size = NULL, 0
                while at < last:
                    stop = <const uint8_t *>memchr(at, 2, <size_t>(last - at))
                    if stop == NULL:
                        stop = last
                    if (
                        <size_t>(stop - at) > sought_size
                        and memcmp(at, sought, sought_size) == 0
                    ):
                        value = at + sought_size
                        value_size = <size_t>(stop - value)
                    at = stop + 1
                present[number] = value != NULL
                if value != NULL:
                    others = 0
                    for index in range(value_size):
                        others |= value[index]
                    if others >= 0x80:
                        text = properties.text(
                            PyBytes_FromStringAndSize(<const char *>value, <Py_ssize_t>value_size)
                        ).encode()
                        value, value_size = text, <size_t>len(text)
                    if used + <int64_t>value_size > room:
                        room = 2 * room + <int64_t>value_size
                        larger = realloc(out, <size_t>room)
                        if larger == NULL:
                            raise MemoryError
                        out = <uint8_t *>larger
                    memcpy(out + used, value, value_size)
                    used += <int64_t>value_size
                    if used > 0x7FFFFFFF:
                        raise OverflowError("more than 2 GiB of values")
                offsets[number + 1] = <int32_t>used
            return Values(
                PyBytes_FromStringAndSize(
                    <const char *>offsets, <Py_ssize_t>((count + 1) * <int64_t>sizeof(int32_t))
                ),
                PyBytes_FromStringAndSize(<const char *>out, <Py_ssize_t>used),
                PyBytes_FromStringAndSize(<const char *>present, <Py_ssize_t>count),
            )
        finally:
            free(offsets)
            free(present)
            free(out)
            PyBuffer_Release(&borrowed)
    finally:
        PyBuffer_Release(&given)
