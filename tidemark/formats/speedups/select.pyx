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
    RECORD_SIZE_MIN = 91
    MAGIC_V1 = 0xDAA320A7
    MAGIC_V2 = 0xDAA320AB

_HALTS = (Halt.END, Halt.FULL, Halt.OUTSIDE, Halt.STRANGER)
cdef enum:
    END = 0
    FULL = 1
    OUTSIDE = 2
    STRANGER = 3


cdef struct Tag:
    const uint8_t *text
    Py_ssize_t size


cdef class _Filter:
    """A subscription as arrays; ``owner`` holds the bytes of the texts."""

    cdef Py_ssize_t hash_count, tag_count
    cdef bint compares_tags
    cdef int32_t *hashes
    cdef Tag *tags
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
        self.tags = <Tag *>PyMem_Malloc(max(1, self.tag_count) * sizeof(Tag))
        if self.hashes == NULL or self.tags == NULL:
            raise MemoryError
        for index in range(self.hash_count):
            self.hashes[index] = small[index]
        for index in range(self.tag_count):
            raw = self.owner[index]
            self.tags[index].text = <const uint8_t *>PyBytes_AS_STRING(raw)
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
            if self.tags[index].size == size and not memcmp(self.tags[index].text, text, size):
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


cdef int _tags_fit(const uint8_t *record, int64_t size, int64_t at, _Filter wanted) noexcept:
    """Return 1 if TAGS matches, 0 if not, -1 if the properties do not end the record.

    at: end of the topic, at most size.
    """
    cdef int64_t stop, left
    cdef const uint8_t *segment
    cdef const uint8_t *found
    cdef const uint8_t *value = NULL
    cdef Py_ssize_t value_size = 0
    if size - at < 2:
        return -1
    left = <int16_t>tidemark_get_16(record + at)
    at += 2
    if left < 0 or at + left != size:
        return -1
    segment = record + at
    while left > 0:
        found = <const uint8_t *>memchr(segment, 2, left)
        stop = left if found == NULL else found - segment
        # The last TAGS wins; one without a value is ignored.
        if stop > 5 and not memcmp(segment, b"TAGS\x01", 5):
            value = segment + 5
            value_size = stop - 5
        segment += stop + 1
        left -= stop + 1
    if value == NULL:
        return 0
    return wanted.has_tag(value, value_size)


def select(
    units, int64_t first, window, int64_t window_at, *, bytes topic not None, int64_t queue,
    limits, wanted=None, int64_t count=0, int64_t bytes_total=0, int64_t skip_until=-1,
):
    cdef int64_t count_max, bytes_max, count_at_once, bytes_at_once
    cdef _Filter filtering = None
    if wanted is not None:
        if wanted.tags is not None and any("\ufffd" in tag for tag in wanted.tags):
            # Invalid UTF-8 decodes to this character, so compare as text in the pure version.
            return pure.select(
                units, first, window, window_at, topic=topic, queue=queue, limits=limits,
                wanted=wanted, count=count, bytes_total=bytes_total, skip_until=skip_until,
            )
        filtering = _Filter(wanted.hashes, wanted.tags)
    count_max, bytes_max, count_at_once, bytes_at_once = limits
    cdef Py_buffer unit_view, window_view
    PyObject_GetBuffer(units, &unit_view, PyBUF_SIMPLE)
    try:
        PyObject_GetBuffer(window, &window_view, PyBUF_SIMPLE)
        try:
            return _select(
                <const uint8_t *>unit_view.buf, unit_view.len // UNIT_SIZE, first,
                <const uint8_t *>window_view.buf, window_view.len, window_at,
                <const uint8_t *>PyBytes_AS_STRING(topic), PyBytes_GET_SIZE(topic), queue,
                count_max, bytes_max, count_at_once, bytes_at_once,
                filtering, count, bytes_total, skip_until,
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
    _Filter wanted, int64_t count, int64_t bytes_total, int64_t skip_until,
):
    cdef list stretches = []
    cdef int64_t start = -1, end = -1, filtered = 0
    cdef int64_t offset, size, at, tags_code, ahead
    cdef Py_ssize_t looked
    cdef int halt = END, tagged
    for looked in range(unit_count):
        # Load each once: another process may write to the units.
        offset = <int64_t>tidemark_get_64(unit)
        size = <int32_t>tidemark_get_32(unit + 8)
        tags_code = <int64_t>tidemark_get_64(unit + 12)
        if bytes_total >= bytes_max or bytes_total and count and (
            count >= count_max
            or bytes_total + size > bytes_max
            or bytes_total + size > bytes_at_once
            or count >= count_at_once
        ):
            halt = FULL
            break
        if offset < 0 or offset >= skip_until:
            if wanted is None or wanted.has_hash(<int32_t>tags_code):
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
                    ahead = <int64_t>(tidemark_get_64(unit + UNIT_SIZE) - <uint64_t>window_at)
                    if 0 <= ahead < room:
                        tidemark_prefetch(window + ahead)
                tagged = _judge(
                    window + at, size, offset, number, queue, topic, topic_size, wanted
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
                    count += 1
                    bytes_total += size
                    skip_until = -1
                else:
                    filtered += 1
            else:
                filtered += 1
        number += 1
        unit += UNIT_SIZE
    else:
        looked = unit_count
    if end >= 0:
        stretches.append((start, end))
    return Selected(looked, stretches, count, bytes_total, filtered, _HALTS[halt])


cdef int _judge(
    const uint8_t *record, int64_t size, int64_t physical_offset, int64_t queue_offset,
    int64_t queue, const uint8_t *topic, Py_ssize_t topic_size, _Filter wanted,
) noexcept:
    """Return 1 to select the record, 0 to skip it, -1 if it is a different record."""
    cdef int64_t at = _behind_topic(
        record, size, physical_offset, queue_offset, queue, topic, topic_size
    )
    if at < 0:
        return -1
    if wanted is None or not wanted.compares_tags:
        return 1
    return _tags_fit(record, size, at, wanted)
