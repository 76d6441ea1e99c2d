"""Native implementation of ``tidemark.formats.produce_wire``, which documents the contracts.

One pass over the bytes of the request creates the entries, without a map and without an object per
message. A message is read completely, then the size of its entry is checked against the remaining
room, then the entry is written. Nothing recurses, because the common form has a fixed depth. The
request and the entries are ``bytes``, which do not change meanwhile.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_GET_SIZE
from cpython.long cimport PyLong_AsLongLongAndOverflow, PyLong_CheckExact
from cpython.object cimport PyObject
from cpython.ref cimport Py_XDECREF
from cpython.unicode cimport PyUnicode_CheckExact
from libc.stdint cimport (
    INT32_MAX, INT32_MIN, SIZE_MAX, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
)
from libc.string cimport memchr, memcmp, memcpy

cdef extern from "string.h":
    void *memrchr(const void *data, int byte, size_t size) nogil

from tidemark.formats import produce_wire as original
from tidemark.formats import properties
from tidemark.formats.produce_wire import PlainRequest

cdef extern from "Python.h":
    PyObject *raw_bytes "PyBytes_FromStringAndSize" (const char *data, Py_ssize_t size) except NULL
    char *raw_data "PyBytes_AS_STRING" (PyObject *made)
    int _PyBytes_Resize(PyObject **made, Py_ssize_t size) except -1
    const char *PyUnicode_AsUTF8AndSize(object text, Py_ssize_t *size) except NULL

cdef extern from "bigendian.h":
    void tidemark_put_64(uint8_t *at, uint64_t value) nogil
    void tidemark_put_16(uint8_t *at, uint16_t value) nogil
    void tidemark_put_32(uint8_t *at, uint32_t value) nogil

cdef extern from "entry.h":
    ctypedef struct Entry "tidemark_entry":
        const uint8_t *properties
        size_t body_size
        size_t properties_size
        const uint8_t *end
    enum:
        TIDEMARK_ENTRY_OVERHEAD
    bint tidemark_read_entry(const uint8_t *at, size_t room, Entry *entry) nogil

include "property_text.pxi"

cdef extern from "msgpack.h":
    ctypedef struct Cursor "tidemark_cursor":
        const uint8_t *at
        const uint8_t *end
    enum:
        TIDEMARK_NIL
        TIDEMARK_FALSE
        TIDEMARK_TRUE
    uint8_t tidemark_peek(const Cursor *cursor) nogil
    bint tidemark_read_str(Cursor *cursor, Piece *text) nogil
    bint tidemark_read_bin(Cursor *cursor, Piece *data) nogil
    bint tidemark_read_array(Cursor *cursor, uint64_t *count) nogil
    bint tidemark_read_map(Cursor *cursor, uint64_t *count) nogil
    bint tidemark_read_int(Cursor *cursor, int64_t *value) nogil
    uint8_t *tidemark_write(uint8_t *to, const void *data, size_t size) nogil
    uint8_t *tidemark_write_int(uint8_t *to, int64_t value) nogil
    uint8_t *tidemark_write_str(uint8_t *to, const uint8_t *text, size_t size) nogil
    uint8_t *tidemark_write_array(uint8_t *to, size_t count) nogil

cdef enum:
    PAIRS_MAX = 64
    ID_HEAD_SIZE_MAX = 64
    HOST_SIZE_MAX = 20
    # Names, message id, head of the unique id, four numbers; without the unique id itself.
    RESULT_SIZE_MAX = 76 + 2 + 2 * (HOST_SIZE_MAX + 8) + 5 + 4 * 9
    ANSWER_HEAD_SIZE_MAX = 64  # without the durability level
    MESSAGE_FIELDS = 8
    REQUEST_FIELDS = 4
    PAIR_END = 0x02
    GIL_SIZE = 65536  # bytes of a request from which the GIL is released

assert PAIRS_MAX == original.PAIRS_MAX

cdef size_t UNIQUE_ID_SIZE_MAX = original.UNIQUE_ID_SIZE_MAX
cdef int64_t BODY_SIZE_MAX = original.BODY_SIZE_MAX
cdef int64_t PROPERTIES_SIZE_MAX = properties.PROPERTIES_SIZE_MAX
cdef const int64_t I64_MAX = 0x7FFFFFFFFFFFFFFF

cdef enum Field:
    BODY = 1
    BODY_TEXT = 2
    TAGS = 4
    KEYS = 8
    PROPERTIES = 16
    UNIQUE_ID = 32
    FLAG = 64
    QUEUE = 128

cdef enum:
    NO_QUEUE = -1
    NOT_YET = -2
    NO_TIMEOUT = -1


cdef struct Rules:
    int64_t body_max  # bytes; no message fits if it is negative
    int64_t stored_max
    bint makes_ids
    uint32_t id_count
    size_t id_size
    char[ID_HEAD_SIZE_MAX + 8] id_text  # head and time


cdef struct Message:
    # A parsed message. The pieces point into the request; an absent field has size 0.
    uint32_t seen
    Piece body
    Piece tags
    Piece unique_id
    Cursor keys  # of the strings
    uint64_t key_count
    size_t keys_size  # joined
    Cursor pairs  # of names and values
    uint64_t pair_count
    size_t pairs_size  # encoded
    int32_t flag
    int64_t queue


cdef struct Entries:
    uint8_t *at
    uint8_t *end
    int64_t queue
    uint32_t made_ids


cdef char[512] HEX
"""The two upper-case hex digits of every byte."""
for _number in range(256):
    HEX[2 * _number] = ord("0123456789ABCDEF"[_number >> 4])
    HEX[2 * _number + 1] = ord("0123456789ABCDEF"[_number & 15])


def read_plain(
    body,
    *,
    int64_t message_size_max,
    int64_t properties_size_max,
    int64_t messages_max,
    int64_t timeout_ms_max,
    bint makes_ids,
    bytes id_head,
    id_ms,
    id_count,
):
    cdef Rules rules
    cdef uint32_t time_ms
    cdef int shift
    if not PyBytes_CheckExact(body) or len(id_head) > ID_HEAD_SIZE_MAX:
        return original.read_plain(
            body,
            message_size_max=message_size_max,
            properties_size_max=properties_size_max,
            messages_max=messages_max,
            timeout_ms_max=timeout_ms_max,
            makes_ids=makes_ids,
            id_head=id_head,
            id_ms=id_ms,
            id_count=id_count,
        )
    rules.body_max = min(message_size_max, BODY_SIZE_MAX)
    rules.stored_max = min(properties_size_max, PROPERTIES_SIZE_MAX)
    rules.makes_ids = makes_ids
    rules.id_count = id_count & 0xFFFF
    rules.id_size = PyBytes_GET_SIZE(id_head)
    memcpy(rules.id_text, PyBytes_AS_STRING(id_head), rules.id_size)
    time_ms = id_ms & 0xFFFFFFFF
    for shift in range(24, -8, -8):
        memcpy(rules.id_text + rules.id_size, HEX + 2 * (time_ms >> shift & 0xFF), 2)
        rules.id_size += 2
    return request(body, &rules, messages_max, timeout_ms_max)


cdef object request(object body, Rules *rules, int64_t messages_max, int64_t timeout_ms_max):
    """Return the result of ``read_plain``."""
    cdef Cursor cursor, messages
    cdef Piece key, ack
    cdef Entries entries
    cdef uint64_t field_count, number, message_count = 0
    cdef int64_t timeout_ms = 0
    cdef bint has_ids = False, has_ack = False, wants_none = False
    cdef PyObject *made = NULL
    cursor.at = <const uint8_t *>PyBytes_AS_STRING(body)
    cursor.end = cursor.at + PyBytes_GET_SIZE(body)
    ack = NOTHING
    if not tidemark_read_map(&cursor, &field_count) or field_count > REQUEST_FIELDS:
        return None
    try:
        for number in range(field_count):
            if not tidemark_read_str(&cursor, &key):
                return None
            if tidemark_is(&key, b"messages", 8):
                if made != NULL or not tidemark_read_array(&cursor, &message_count):
                    return None
                # A message has at least one byte, so there cannot be more messages than bytes.
                if message_count > left(&cursor) or not 0 < <int64_t>message_count <= messages_max:
                    return None
                messages = cursor
                # An entry is at most its message, its head and a generated id.
                made = raw_bytes(
                    NULL,
                    left(&cursor) + message_count * (TIDEMARK_ENTRY_OVERHEAD + rules.id_size + 14),
                )
                begin(&entries, made)
                if not read_messages(&cursor, message_count, rules, &entries):
                    if has_ids or not rules.makes_ids:
                        return None
                    # It may only be too large with a generated id, which may be turned off below.
                    cursor = messages
                    rules.makes_ids = False
                    begin(&entries, made)
                    if not read_messages(&cursor, message_count, rules, &entries):
                        return None
                    wants_none = True
            elif tidemark_is(&key, b"ack", 3):
                if has_ack:
                    return None
                has_ack = True
                if not skip_nil(&cursor) and not (
                    tidemark_read_str(&cursor, &ack) and is_level(&ack)
                ):
                    return None
            elif tidemark_is(&key, b"timeout_ms", 10):
                if timeout_ms:
                    return None
                timeout_ms = NO_TIMEOUT
                if not skip_nil(&cursor) and not (
                    tidemark_read_int(&cursor, &timeout_ms) and 1 <= timeout_ms <= timeout_ms_max
                ):
                    return None
            elif tidemark_is(&key, b"make_unique_ids", 15):
                if has_ids:
                    return None
                has_ids = True
                if tidemark_peek(&cursor) == TIDEMARK_FALSE:
                    rules.makes_ids = wants_none = False
                elif tidemark_peek(&cursor) not in (TIDEMARK_TRUE, TIDEMARK_NIL):
                    return None
                cursor.at += 1
            else:
                return None
        if made == NULL or cursor.at != cursor.end or wants_none:
            return None
        if entries.made_ids and not rules.makes_ids:
            # The field that turns off generated ids followed the messages.
            begin(&entries, made)
            if not read_messages(&messages, message_count, rules, &entries):
                return None
        _PyBytes_Resize(&made, entries.at - <uint8_t *>raw_data(made))
        fields = (
            <object>made,
            message_count,
            None if entries.queue == NO_QUEUE else entries.queue,
            (<const char *>ack.at)[: ack.size].decode("ascii") if ack.size else None,
            timeout_ms if timeout_ms > 0 else None,
            entries.made_ids,
        )
        return tuple.__new__(PlainRequest, fields)  # the class's own __new__ is interpreted
    finally:
        Py_XDECREF(made)


cdef inline size_t left(const Cursor *cursor) noexcept nogil:
    return cursor.end - cursor.at


cdef inline bint skip_nil(Cursor *cursor) noexcept nogil:
    if tidemark_peek(cursor) != TIDEMARK_NIL:
        return False
    cursor.at += 1
    return True


cdef inline bint is_level(const Piece *text) noexcept nogil:
    return (
        tidemark_is(text, b"memory", 6)
        or tidemark_is(text, b"disk", 4)
        or tidemark_is(text, b"replicated", 10)
    )


cdef void begin(Entries *entries, PyObject *made) noexcept:
    entries.at = <uint8_t *>raw_data(made)
    entries.end = entries.at + PyBytes_GET_SIZE(<object>made)
    entries.queue = NOT_YET
    entries.made_ids = 0


cdef bint read_messages(
    Cursor *cursor, uint64_t count, const Rules *rules, Entries *entries
) noexcept:
    """Write the entries of count messages; return False if one is not of the common form."""
    cdef bint done
    if left(cursor) < GIL_SIZE:
        return write_messages(cursor, count, rules, entries)
    with nogil:
        done = write_messages(cursor, count, rules, entries)
    return done


cdef bint write_messages(
    Cursor *cursor, uint64_t count, const Rules *rules, Entries *entries
) noexcept nogil:
    cdef Message message
    cdef uint64_t number
    for number in range(count):
        if not read_message(cursor, &message) or <int64_t>message.body.size > rules.body_max:
            return False
        if entries.queue == NOT_YET:
            entries.queue = message.queue
        if entries.queue != message.queue or not write_entry(&message, rules, entries):
            return False
    return True


cdef uint32_t field_of(const Piece *key) noexcept nogil:
    if key.size == 4:
        if tidemark_is(key, b"body", 4):
            return BODY
        if tidemark_is(key, b"tags", 4):
            return TAGS
        if tidemark_is(key, b"keys", 4):
            return KEYS
        if tidemark_is(key, b"flag", 4):
            return FLAG
    elif tidemark_is(key, b"unique_id", 9):
        return UNIQUE_ID
    elif tidemark_is(key, b"queue", 5):
        return QUEUE
    elif tidemark_is(key, b"body_text", 9):
        return BODY_TEXT
    elif tidemark_is(key, b"properties", 10):
        return PROPERTIES
    return 0


cdef bint read_message(Cursor *cursor, Message *message) noexcept nogil:
    """Read and check one message, except for its sizes; False if it is not of the common form."""
    cdef uint64_t field_count, number
    cdef size_t characters
    cdef int64_t value = 0
    cdef uint32_t field
    cdef Piece key
    if not tidemark_read_map(cursor, &field_count) or field_count > MESSAGE_FIELDS:
        return False
    message.seen = 0
    message.body = message.tags = message.unique_id = NOTHING
    message.keys = message.pairs = cursor[0]
    message.key_count = message.pair_count = 0
    message.keys_size = message.pairs_size = 0
    message.flag = 0
    message.queue = NO_QUEUE
    for number in range(field_count):
        if not tidemark_read_str(cursor, &key):
            return False
        field = field_of(&key)
        if field == 0 or message.seen & field:
            return False
        message.seen |= field
        if field == BODY:
            if not tidemark_read_bin(cursor, &message.body):
                return False
        elif field == BODY_TEXT:
            if not tidemark_read_str(cursor, &message.body) or not tidemark_is_utf8(
                message.body.at, message.body.size, &characters
            ):
                return False
        elif skip_nil(cursor):
            pass
        elif field == UNIQUE_ID:
            if not tidemark_read_str(cursor, &message.unique_id) or not is_text(
                &message.unique_id, False, UNIQUE_ID_SIZE_MAX
            ):
                return False
        elif field == TAGS:
            if not tidemark_read_str(cursor, &message.tags):
                return False
            if message.tags.size and not is_text(&message.tags, True, SIZE_MAX):
                return False
        elif field == KEYS:
            if not read_keys(cursor, message):
                return False
        elif field == PROPERTIES:
            if not read_pairs(cursor, message):
                return False
        elif not tidemark_read_int(cursor, &value):
            return False
        elif field == FLAG:
            if not INT32_MIN <= value <= INT32_MAX:
                return False
            message.flag = <int32_t>value
        else:
            if not 0 <= value <= INT32_MAX:
                return False
            message.queue = value
    field = message.seen & (BODY | BODY_TEXT)
    return field == BODY or field == BODY_TEXT


cdef bint read_keys(Cursor *cursor, Message *message) noexcept nogil:
    cdef uint64_t number
    cdef Piece key
    if not tidemark_read_array(cursor, &message.key_count):
        return False
    message.keys = cursor[0]
    for number in range(message.key_count):
        # A space separates keys.
        if not tidemark_read_str(cursor, &key) or not is_text(&key, False, SIZE_MAX):
            return False
        message.keys_size += key.size + (number > 0)
    return True


cdef bint read_pairs(Cursor *cursor, Message *message) noexcept nogil:
    cdef Piece[PAIRS_MAX] names
    cdef Piece value
    cdef uint64_t number, other
    if not tidemark_read_map(cursor, &message.pair_count) or message.pair_count > PAIRS_MAX:
        return False
    message.pairs = cursor[0]
    for number in range(message.pair_count):
        if (
            not tidemark_read_str(cursor, &names[number])
            or not is_text(&names[number], True, SIZE_MAX)
            or is_refused(&names[number])
            or not tidemark_read_str(cursor, &value)
            or not is_text(&value, True, SIZE_MAX)
        ):
            return False
        for other in range(number):
            if is_same(&names[other], &names[number]):
                return False
        message.pairs_size += names[number].size + value.size + 2
    return True


cdef bint write_entry(const Message *message, const Rules *rules, Entries *entries) noexcept nogil:
    """Write the entry of the message; return False if its properties are too large."""
    cdef size_t stored = message.pairs_size, size
    cdef uint8_t *at = entries.at
    cdef Cursor strings
    cdef Piece text
    cdef uint64_t number
    cdef bint makes_id = message.unique_id.size == 0 and rules.makes_ids
    if message.tags.size:
        stored += 6 + message.tags.size
    if message.key_count:
        stored += 6 + message.keys_size
    if message.unique_id.size:
        stored += 10 + message.unique_id.size
    elif makes_id:
        stored += 14 + rules.id_size
    size = TIDEMARK_ENTRY_OVERHEAD + message.body.size + stored
    if <int64_t>stored > rules.stored_max or size > <size_t>(entries.end - at):
        return False
    entries.at += size
    tidemark_put_32(at, <uint32_t>size)
    tidemark_put_64(at + 4, 0)  # magic and body CRC are not used
    tidemark_put_32(at + 12, <uint32_t>message.flag)
    tidemark_put_32(at + 16, <uint32_t>message.body.size)
    at = tidemark_write(at + 20, message.body.at, message.body.size)
    tidemark_put_16(at, <uint16_t>stored)
    at += 2
    strings = message.pairs
    for number in range(2 * message.pair_count):
        if not tidemark_read_str(&strings, &text):
            return False  # impossible: it was read before
        at = tidemark_write(at, text.at, text.size)
        at[0] = <uint8_t>(1 + number % 2)
        at += 1
    if message.tags.size:
        at = tidemark_write(at, b"TAGS\x01", 5)
        at = tidemark_write(at, message.tags.at, message.tags.size)
        at[0] = PAIR_END
        at += 1
    if message.key_count:
        at = tidemark_write(at, b"KEYS\x01", 5)
        strings = message.keys
        for number in range(message.key_count):
            if not tidemark_read_str(&strings, &text):
                return False
            at = tidemark_write(at, text.at, text.size)
            at[0] = c" "
            at += 1
        (at - 1)[0] = PAIR_END
    if message.unique_id.size:
        at = tidemark_write(at, b"UNIQ_KEY\x01", 9)
        at = tidemark_write(at, message.unique_id.at, message.unique_id.size)
        at[0] = PAIR_END
    elif makes_id:
        number = rules.id_count + entries.made_ids
        entries.made_ids += 1
        at = tidemark_write(at, b"UNIQ_KEY\x01", 9)
        at = tidemark_write(at, rules.id_text, rules.id_size)
        at = tidemark_write(at, HEX + 2 * (number >> 8 & 0xFF), 2)
        at = tidemark_write(at, HEX + 2 * (number & 0xFF), 2)
        at[0] = PAIR_END
    return True


def pack_answer(
    entries,
    sizes,
    *,
    level,
    copies,
    host,
    queue,
    first_queue_offset,
    first_physical_offset,
    store_timestamp_ms,
    batch_id,
):
    made = packed(
        entries,
        sizes,
        level,
        copies,
        host,
        queue,
        first_queue_offset,
        first_physical_offset,
        store_timestamp_ms,
        batch_id,
    )
    if made is not None:
        return made
    return original.pack_answer(
        entries,
        sizes,
        level=level,
        copies=copies,
        host=host,
        queue=queue,
        first_queue_offset=first_queue_offset,
        first_physical_offset=first_physical_offset,
        store_timestamp_ms=store_timestamp_ms,
        batch_id=batch_id,
    )


cdef struct Common:
    # Common values of the results of one answer, and the offsets of the next result.
    int64_t queue
    int64_t queue_offset
    int64_t physical_offset
    int64_t stored_ms
    Piece batch_id  # NULL: each message is a record
    size_t host_size  # hex digits
    char[2 * HOST_SIZE_MAX] host


cdef object packed(
    object entries,
    object sizes,
    object level,
    object copies,
    object host,
    object queue,
    object first_queue_offset,
    object first_physical_offset,
    object store_timestamp_ms,
    object batch_id,
):
    """Return the result of ``pack_answer``; None if the pure implementation must run."""
    cdef Common common
    cdef Py_ssize_t level_size, count, number, room, id_size = 0
    cdef int64_t copy_count
    cdef const char *level_text
    cdef const uint8_t *data
    cdef uint8_t *at
    cdef PyObject *made = NULL
    if not (
        PyBytes_CheckExact(entries)
        and PyBytes_CheckExact(sizes)
        and PyBytes_CheckExact(host)
        and PyUnicode_CheckExact(level)
        and number_64(copies, &copy_count)
        and number_64(queue, &common.queue)
        and number_64(first_queue_offset, &common.queue_offset)
        and number_64(first_physical_offset, &common.physical_offset)
        and number_64(store_timestamp_ms, &common.stored_ms)
    ):
        return None
    if PyBytes_GET_SIZE(sizes) % 4 or PyBytes_GET_SIZE(host) > HOST_SIZE_MAX:
        return None
    count = PyBytes_GET_SIZE(sizes) // 4
    common.batch_id = NOTHING
    if batch_id is not None:
        if count != 1 or not PyUnicode_CheckExact(batch_id):
            return None
        try:
            common.batch_id.at = <const uint8_t *>PyUnicode_AsUTF8AndSize(batch_id, &id_size)
        except UnicodeEncodeError:
            return None
        common.batch_id.size = id_size
        count = entry_count(entries)
    if common.queue_offset > I64_MAX - count or common.physical_offset > I64_MAX - (count << 32):
        return None
    room = stored_size(entries, count)
    if room < 0:
        return None
    room += count * id_size
    try:
        level_text = PyUnicode_AsUTF8AndSize(level, &level_size)
    except UnicodeEncodeError:
        return None
    data = <const uint8_t *>PyBytes_AS_STRING(host)
    common.host_size = 2 * PyBytes_GET_SIZE(host)
    for number in range(PyBytes_GET_SIZE(host)):
        memcpy(common.host + 2 * number, HEX + 2 * data[number], 2)
    made = raw_bytes(NULL, ANSWER_HEAD_SIZE_MAX + level_size + count * RESULT_SIZE_MAX + room)
    try:
        at = <uint8_t *>raw_data(made)
        at = tidemark_write(at, b"\x83\xa6status\xa6PUT_OK\xa3ack\x82\xa5level", 26)
        at = tidemark_write_str(at, <const uint8_t *>level_text, level_size)
        at = tidemark_write(at, b"\xa6copies", 7)
        at = tidemark_write_int(at, copy_count)
        at = tidemark_write(at, b"\xa7results", 8)
        at = tidemark_write_array(at, count)
        at = write_results(
            at,
            <const uint8_t *>PyBytes_AS_STRING(entries),
            PyBytes_GET_SIZE(entries),
            <const uint8_t *>PyBytes_AS_STRING(sizes),
            &common,
        )
        if at == NULL:
            return None
        _PyBytes_Resize(&made, at - <uint8_t *>raw_data(made))
        return <object>made
    finally:
        Py_XDECREF(made)


cdef bint number_64(object value, int64_t *number) except -1:
    cdef int overflow = 0
    if not PyLong_CheckExact(value):
        return False
    number[0] = PyLong_AsLongLongAndOverflow(value, &overflow)
    return overflow == 0


cdef Py_ssize_t entry_count(object entries) noexcept:
    """Return the number of entries up to the first damaged one."""
    cdef const uint8_t *at = <const uint8_t *>PyBytes_AS_STRING(entries)
    cdef const uint8_t *end = at + PyBytes_GET_SIZE(entries)
    cdef Py_ssize_t count = 0
    cdef Entry entry
    while at < end and tidemark_read_entry(at, end - at, &entry):
        at = entry.end
        count += 1
    return count


cdef Py_ssize_t stored_size(object entries, Py_ssize_t count) noexcept:
    """Return the bytes of all properties; -1 if an entry is damaged or the count is wrong."""
    cdef const uint8_t *at = <const uint8_t *>PyBytes_AS_STRING(entries)
    cdef const uint8_t *end = at + PyBytes_GET_SIZE(entries)
    cdef Py_ssize_t total = 0
    cdef Entry entry
    while at < end:
        if count == 0 or not tidemark_read_entry(at, end - at, &entry):
            return -1
        total += entry.properties_size
        count -= 1
        at = entry.end
    return total if count == 0 else -1


cdef uint8_t *write_results(
    uint8_t *to, const uint8_t *at, size_t size, const uint8_t *sizes, Common *common
) noexcept nogil:
    """Write a result per entry; NULL if the pure implementation must handle a unique id."""
    cdef const uint8_t *end = at + size
    cdef size_t characters
    cdef uint32_t record
    cdef Entry entry
    cdef Piece unique_id
    while at < end:
        if not tidemark_read_entry(at, end - at, &entry):
            return NULL  # impossible: stored_size has read all entries
        at = entry.end
        to = tidemark_write(to, b"\x86\xaamessage_id", 12)
        to = write_id(to, common)
        to = tidemark_write(to, b"\xa9unique_id", 10)
        if not find_unique_id(entry.properties, entry.properties_size, &unique_id):
            if common.batch_id.at == NULL:
                to[0] = TIDEMARK_NIL
                to += 1
            else:
                to = tidemark_write_str(to, common.batch_id.at, common.batch_id.size)
        elif (
            tidemark_text_has(unique_id.at, unique_id.size) & TIDEMARK_HAS_HIGH
            and not tidemark_is_utf8(unique_id.at, unique_id.size, &characters)
        ):
            return NULL
        else:
            to = tidemark_write_str(to, unique_id.at, unique_id.size)
        to = tidemark_write(to, b"\xa5queue", 6)
        to = tidemark_write_int(to, common.queue)
        to = tidemark_write(to, b"\xacqueue_offset", 13)
        to = tidemark_write_int(to, common.queue_offset)
        to = tidemark_write(to, b"\xafphysical_offset", 16)
        to = tidemark_write_int(to, common.physical_offset)
        to = tidemark_write(to, b"\xb2store_timestamp_ms", 19)
        to = tidemark_write_int(to, common.stored_ms)
        common.queue_offset += 1
        if common.batch_id.at == NULL:
            memcpy(&record, sizes, 4)
            sizes += 4
            common.physical_offset += record
    return to


cdef uint8_t *write_id(uint8_t *to, const Common *common) noexcept nogil:
    """Write the offset message id (2.8) as msgpack."""
    cdef size_t size = common.host_size + 16
    cdef uint64_t offset = <uint64_t>common.physical_offset
    cdef int shift
    if size <= 31:
        to[0] = <uint8_t>(0xA0 | size)
        to += 1
    else:
        to[0] = 0xD9
        to[1] = <uint8_t>size
        to += 2
    to = tidemark_write(to, common.host, common.host_size)
    for shift in range(56, -8, -8):
        to = tidemark_write(to, HEX + 2 * (offset >> shift & 0xFF), 2)
    return to


cdef bint find_unique_id(const uint8_t *raw, size_t size, Piece *value) noexcept nogil:
    """Find UNIQ_KEY like ``properties.find``: its last segment with a value."""
    cdef const uint8_t *end = raw + size
    cdef const uint8_t *begin
    cdef const uint8_t *before
    while True:
        before = <const uint8_t *>memrchr(raw, PAIR_END, end - raw)
        begin = raw if before == NULL else before + 1
        if end - begin > 9 and memcmp(begin, b"UNIQ_KEY\x01", 9) == 0:
            value.at = begin + 9
            value.size = end - value.at
            return True
        if before == NULL:
            return False
        end = before
