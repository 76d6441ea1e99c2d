"""Native implementation of ``formats.select``: one Python pair per range, no object per unit."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer, Py_buffer
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memchr, memcmp

from tidemark.formats import select as pure
from tidemark.formats.select import Halt, Selected

cdef extern from "bigendian.h":
    uint16_t tidemark_get_16(const uint8_t *at) nogil
    uint32_t tidemark_get_32(const uint8_t *at) nogil
    uint64_t tidemark_get_64(const uint8_t *at) nogil

cdef extern from *:
    """
    static inline void tidemark_prefetch(const void *at) { __builtin_prefetch(at); }
    """
    void tidemark_prefetch(const void *at) nogil

cdef enum:
    UNIT_SIZE = 20
    BATCH_UNIT_SIZE = 46
    BASE_AT = 28
    COUNT_AT = 36
    INNER_BATCH = 0x80
    COUNT_MAX = 32_767
    DIGITS_MAX = 19
    RECORD_SIZE_MIN = 91
    MAGIC_V1 = 0xDAA320A7
    MAGIC_V2 = 0xDAA320AB

_HALTS = (Halt.END, Halt.FULL, Halt.OUTSIDE, Halt.STRANGER)
cdef enum:
    END = 0
    FULL = 1
    OUTSIDE = 2
    STRANGER = 3


cdef struct Piece:
    const uint8_t *at
    int64_t size


cdef class _Filter:
    """A subscription as arrays; ``owner`` holds the bytes of the texts."""

    cdef Py_ssize_t hash_count, tag_count
    cdef bint compares_tags
    cdef int32_t *hashes
    cdef Piece *tags
    cdef list owner

    def __cinit__(self, hashes, tags):
        cdef Py_ssize_t index
        small = [each for each in hashes if -(1 << 31) <= each < 1 << 31]
        self.hash_count = len(small)
        self.hashes = <int32_t *>PyMem_Malloc(max(1, self.hash_count) * sizeof(int32_t))
        self.compares_tags = tags is not None
        self.owner = []
        for text in tags or ():
            try:
                raw = text.encode()
            except UnicodeEncodeError:
                continue  # no stored tag decodes to this text
            if raw:
                self.owner.append(raw)
        self.tag_count = len(self.owner)
        self.tags = <Piece *>PyMem_Malloc(max(1, self.tag_count) * sizeof(Piece))
        if self.hashes == NULL or self.tags == NULL:
            raise MemoryError
        for index in range(self.hash_count):
            self.hashes[index] = small[index]
        for index in range(self.tag_count):
            raw = self.owner[index]
            self.tags[index].at = <const uint8_t *>PyBytes_AS_STRING(raw)
            self.tags[index].size = PyBytes_GET_SIZE(raw)

    def __dealloc__(self):
        PyMem_Free(self.hashes)
        PyMem_Free(self.tags)

    cdef bint has_hash(self, int32_t value) noexcept:
        cdef Py_ssize_t index
        for index in range(self.hash_count):
            if self.hashes[index] == value:
                return True
        return False

    cdef bint has_tag(self, const uint8_t *text, Py_ssize_t size) noexcept:
        cdef Py_ssize_t index
        for index in range(self.tag_count):
            if self.tags[index].size == size and not memcmp(self.tags[index].at, text, size):
                return True
        return False


cdef int64_t _behind_topic(
    const uint8_t *record, int64_t size, int64_t physical_offset, int64_t queue_offset,
    int64_t queue, const uint8_t *topic, Py_ssize_t topic_size,
) noexcept:
    """Return where the record's topic ends in it; -1 if it is not the expected topic.

    record: has size readable bytes.
    """
    cdef uint32_t magic, flags
    cdef uint64_t body_at, topic_at
    cdef Py_ssize_t length_size
    if size < RECORD_SIZE_MIN or <int32_t>tidemark_get_32(record) != size:
        return -1
    if <int64_t>tidemark_get_64(record + 20) != queue_offset:
        return -1
    if <int64_t>tidemark_get_64(record + 28) != physical_offset:
        return -1
    if <int32_t>tidemark_get_32(record + 12) != queue:
        return -1
    magic = tidemark_get_32(record + 4)
    if magic == MAGIC_V1:
        length_size = 1
    elif magic == MAGIC_V2:
        length_size = 2
    else:
        return -1
    if topic_size >> 8 * length_size:
        return -1
    flags = tidemark_get_32(record + 36)
    body_at = 88 + (12 if flags & 0x10 else 0) + (12 if flags & 0x20 else 0)
    if body_at > <uint64_t>size:
        return -1
    topic_at = body_at + tidemark_get_32(record + body_at - 4)
    if topic_at + <uint64_t>(length_size + topic_size) > <uint64_t>size:
        return -1
    if length_size == 1:
        if record[topic_at] != topic_size:
            return -1
    elif tidemark_get_16(record + topic_at) != topic_size:
        return -1
    if memcmp(record + topic_at + length_size, topic, topic_size):
        return -1
    return <int64_t>topic_at + length_size + topic_size


cdef bint _properties_of(
    const uint8_t *record, int64_t size, int64_t at, Piece *found
) noexcept:
    """Find the properties of a record, and return whether they end it.

    at: end of the topic, at most size.
    """
    if size - at < 2:
        return False
    found.size = <int16_t>tidemark_get_16(record + at)
    found.at = record + at + 2
    return found.size >= 0 and at + 2 + found.size == size


cdef bint _value_of(Piece text, const char *name, int64_t name_size, Piece *value) noexcept:
    """Find the value of a property, and return whether there is one. name: with its 0x01.

    The last one wins; one without a value is ignored.
    """
    cdef int64_t stop
    cdef const uint8_t *found
    value.at = NULL
    while text.size > 0:
        found = <const uint8_t *>memchr(text.at, 2, text.size)
        stop = text.size if found == NULL else found - text.at
        if stop > name_size and not memcmp(text.at, name, name_size):
            value.at = text.at + name_size
            value.size = stop - name_size
        text.at += stop + 1
        text.size -= stop + 1
    return value.at != NULL


cdef int64_t _number_of(Piece text, const char *name, int64_t name_size) noexcept:
    """Return the number that a property has; -1 if it has none, -2 for one above an i64."""
    cdef Piece value
    cdef uint64_t number = 0
    cdef int64_t index
    if not _value_of(text, name, name_size, &value) or value.size > DIGITS_MAX:
        return -1
    for index in range(value.size):
        if not 48 <= value.at[index] <= 57:
            return -1
        number = number * 10 + value.at[index] - 48
    return <int64_t>number if number < <uint64_t>1 << 63 else -2


cdef int64_t _message_count(
    const uint8_t *record, int64_t size, int64_t at, int64_t queue_offset
) noexcept:
    """Return the number of messages of a record; -1 if its properties do not end it.

    at: end of the topic. See ``inner_batch.message_count``.
    """
    cdef Piece text
    cdef int64_t count
    if not tidemark_get_32(record + 36) & INNER_BATCH:
        return 1
    if not _properties_of(record, size, at, &text):
        return -1
    count = _number_of(text, b"INNER_NUM\x01", 10)
    if 1 <= count <= COUNT_MAX and _number_of(text, b"INNER_BASE\x01", 11) == queue_offset:
        return count
    return 1


cdef int _tags_fit(const uint8_t *record, int64_t size, int64_t at, _Filter wanted) noexcept:
    """Return 1 if TAGS matches, 0 if not, -1 if the properties do not end the record.

    at: end of the topic, at most size.
    """
    cdef Piece text, value
    if not _properties_of(record, size, at, &text):
        return -1
    return _value_of(text, b"TAGS\x01", 5, &value) and wanted.has_tag(value.at, value.size)


def select(
    units, int64_t first, window, int64_t window_at, *, bytes topic not None, int64_t queue,
    limits, wanted=None, int64_t count=0, int64_t bytes_total=0, int64_t skip_until=-1,
    bint is_batch=False,
):
    cdef Py_ssize_t unit_size = BATCH_UNIT_SIZE if is_batch else UNIT_SIZE
    cdef int64_t count_max, bytes_max, count_at_once, bytes_at_once
    cdef _Filter filtering = None
    if wanted is not None:
        if wanted.tags is not None and any("\ufffd" in tag for tag in wanted.tags):
            # Invalid UTF-8 decodes to this character, so compare as text in the pure version.
            return pure.select(
                units, first, window, window_at, topic=topic, queue=queue, limits=limits,
                wanted=wanted, count=count, bytes_total=bytes_total, skip_until=skip_until,
                is_batch=is_batch,
            )
        filtering = _Filter(wanted.hashes, wanted.tags)
    count_max, bytes_max, count_at_once, bytes_at_once = limits
    cdef Py_buffer unit_view, window_view
    PyObject_GetBuffer(units, &unit_view, PyBUF_SIMPLE)
    try:
        PyObject_GetBuffer(window, &window_view, PyBUF_SIMPLE)
        try:
            return _select(
                <const uint8_t *>unit_view.buf, unit_view.len // unit_size, first,
                <const uint8_t *>window_view.buf, window_view.len, window_at,
                <const uint8_t *>PyBytes_AS_STRING(topic), PyBytes_GET_SIZE(topic), queue,
                count_max, bytes_max, count_at_once, bytes_at_once,
                filtering, count, bytes_total, skip_until, is_batch,
            )
        finally:
            PyBuffer_Release(&window_view)
    finally:
        PyBuffer_Release(&unit_view)


cdef _select(
    const uint8_t *unit, Py_ssize_t unit_count, int64_t number,
    const uint8_t *window, int64_t room, int64_t window_at,
    const uint8_t *topic, Py_ssize_t topic_size, int64_t queue,
    int64_t count_max, int64_t bytes_max, int64_t count_at_once, int64_t bytes_at_once,
    _Filter wanted, int64_t count, int64_t bytes_total, int64_t skip_until, bint is_batch,
):
    cdef list stretches = []
    cdef int64_t start = -1, end = -1, filtered = 0, begin = 0, after = 0
    cdef Py_ssize_t unit_size = BATCH_UNIT_SIZE if is_batch else UNIT_SIZE
    cdef int64_t offset, size, at, tags_code, ahead, messages
    cdef Py_ssize_t looked
    cdef int halt = END, tagged
    for looked in range(unit_count):
        # Load each once: another process may write to the units.
        offset = <int64_t>tidemark_get_64(unit)
        size = <int32_t>tidemark_get_32(unit + 8)
        tags_code = <int64_t>tidemark_get_64(unit + 12)
        if is_batch:
            begin = <int64_t>tidemark_get_64(unit + BASE_AT)
            messages = <int16_t>tidemark_get_16(unit + COUNT_AT)
            after = <int64_t>(<uint64_t>begin + <uint64_t>messages)
            # Unsigned: the difference of two i64 may overflow.
            if begin > number or <uint64_t>number - <uint64_t>begin >= <uint64_t>max(0, messages):
                halt = STRANGER
                break
        else:
            begin = number
            after = number + 1
        if bytes_total >= bytes_max or bytes_total and count and (
            count >= count_max
            or bytes_total + size > bytes_max
            or bytes_total + size > bytes_at_once
            or count >= count_at_once
        ):
            halt = FULL
            break
        if offset < 0 or offset >= skip_until:
            if (
                wanted is None
                or is_batch and not tags_code
                or wanted.has_hash(<int32_t>tags_code)
            ):
                if size <= 0 or size > room or offset < window_at:
                    halt = OUTSIDE
                    break
                # Unsigned: with a negative window_at the difference may overflow an i64.
                if <uint64_t>offset - <uint64_t>window_at > <uint64_t>(room - size):
                    halt = OUTSIDE
                    break
                at = offset - window_at
                if looked + 1 < unit_count:
                    # Records that lie far apart miss every cache: prefetch the next one.
                    ahead = <int64_t>(tidemark_get_64(unit + unit_size) - <uint64_t>window_at)
                    if 0 <= ahead < room:
                        tidemark_prefetch(window + ahead)
                tagged = _judge(
                    window + at, size, offset, begin, after if is_batch else -1,
                    queue, topic, topic_size, wanted,
                )
                if tagged < 0:
                    halt = STRANGER
                    break
                if tagged:
                    if at != end:
                        if end >= 0:
                            stretches.append((start, end))
                        start = at
                    end = at + size
                    count += after - number
                    bytes_total += size
                    skip_until = -1
                else:
                    filtered += 1
            else:
                filtered += after - number
        number = after
        unit += unit_size
    else:
        looked = unit_count
    if end >= 0:
        stretches.append((start, end))
    return Selected(looked, stretches, count, bytes_total, filtered, _HALTS[halt])


cdef int _judge(
    const uint8_t *record, int64_t size, int64_t physical_offset, int64_t queue_offset,
    int64_t after, int64_t queue, const uint8_t *topic, Py_ssize_t topic_size, _Filter wanted,
) noexcept:
    """Return 1 to select the record, 0 to skip it, -1 if it is a different record.

    after: end of the queue offsets of a batch; -1: the queue has no batches."""
    cdef int64_t at = _behind_topic(
        record, size, physical_offset, queue_offset, queue, topic, topic_size
    )
    if at < 0:
        return -1
    if after >= 0:
        if _message_count(record, size, at, queue_offset) != after - queue_offset:
            return -1
        return 1
    if wanted is None or not wanted.compares_tags:
        return 1
    return _tags_fit(record, size, at, wanted)
