"""Native implementation of ``tidemark.formats.batch_parts``, which documents the contracts.

One pass over the entries finds the ends of the batches and what each repeats of its messages: the
first unique id, the common tag, and the distinct keys. The entries are ``bytes``, which do not
change meanwhile; others, and damaged ones, are passed to the pure implementation.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_GET_SIZE
from cpython.dict cimport PyDict_Size
from libc.stdint cimport int64_t, uint8_t
from libc.string cimport memchr, memcmp

from tidemark.formats import batch_parts, inner_batch, produce_wire
from tidemark.formats.batch_parts import Part

include "property_text.pxi"

cdef extern from "entry.h":
    ctypedef struct Entry "tidemark_entry":
        const uint8_t *properties
        size_t body_size
        size_t properties_size
        const uint8_t *end
    bint tidemark_read_entry(const uint8_t *at, size_t room, Entry *entry) nogil

cdef enum:
    PAIR_END = 0x02

cdef size_t UNIQUE_ID_SIZE_MAX = produce_wire.UNIQUE_ID_SIZE_MAX


cdef struct Checks:
    # Rules of the entries of a batch request.
    int64_t size_max  # of a body [bytes]
    int64_t stored_max  # of the properties [bytes]


cdef struct Words:
    # What a batch repeats of an entry's properties; an absent one has size 0.
    Piece unique_id
    Piece tags
    Piece keys


cdef struct Batch:
    # A batch that is being made of entries.
    const uint8_t *at  # first byte of the first entry
    int64_t count
    Piece unique_id
    Piece tags
    bint has_one_tag
    Py_ssize_t room  # bytes left for tag and keys, with a separator after each


def split(entries, *, int64_t body_size_max, int64_t properties_size_max):
    made = parts_of(entries, body_size_max, properties_size_max, NULL)
    if made is not None:
        return made
    return batch_parts.split(
        entries, body_size_max=body_size_max, properties_size_max=properties_size_max
    )


def read_batch(
    entries,
    *,
    int64_t message_size_max,
    int64_t message_properties_size_max,
    int64_t body_size_max,
    int64_t properties_size_max,
):
    cdef Checks checks = Checks(message_size_max, message_properties_size_max)
    if not PyBytes_CheckExact(entries):
        return batch_parts.read_batch(
            entries,
            message_size_max=message_size_max,
            message_properties_size_max=message_properties_size_max,
            body_size_max=body_size_max,
            properties_size_max=properties_size_max,
        )
    made = parts_of(entries, body_size_max, properties_size_max, &checks)
    return made[0] if made is not None and len(made) == 1 else None


cdef list parts_of(
    object entries, int64_t body_size_max, int64_t properties_size_max, const Checks *checks
):
    """Return the batches that entries become; None if an entry is damaged.

    checks: rules of a batch request; None is returned if an entry does not meet them or does not
    fit into the first batch. NULL: there are none.
    """
    cdef const uint8_t *at
    cdef const uint8_t *end
    cdef Entry entry
    cdef Words words
    cdef Batch batch
    cdef Py_ssize_t size, key_count, words_max = batch_parts.words_size_max(properties_size_max)
    cdef int64_t count_max = inner_batch.COUNT_MAX
    cdef dict keys = {}
    cdef list parts = []
    if not PyBytes_CheckExact(entries):
        return None
    at = <const uint8_t *>PyBytes_AS_STRING(entries)
    end = at + PyBytes_GET_SIZE(entries)
    begin_batch(&batch, at, words_max)
    while at < end:
        if not tidemark_read_entry(at, end - at, &entry):
            return None
        if checks != NULL and (
            <int64_t>entry.body_size > checks.size_max
            or <int64_t>entry.properties_size > checks.stored_max
        ):
            return None
        if not read_words(entry.properties, entry.properties_size, checks != NULL, &words):
            return None
        key_count = PyDict_Size(keys)
        size = put_keys(keys, &words.keys) if words.keys.size else 0
        if batch.count and (
            batch.count == count_max or entry.end - batch.at > body_size_max or size > batch.room
        ):
            if checks != NULL:
                return None
            while PyDict_Size(keys) > key_count:
                keys.popitem()
            parts.append(made_part(entries, &batch, at, keys))
            begin_batch(&batch, at, words_max)
            keys = {}
            size = put_keys(keys, &words.keys)
        if not batch.count:
            if checks != NULL and (
                size + (<Py_ssize_t>words.tags.size + 1 if words.tags.size else 0) > batch.room
            ):
                return None
            begin_words(&batch, &words)
            if size > batch.room:
                keys = fitting(keys, &batch.room)
                size = 0
        elif batch.has_one_tag and not is_same_tag(&batch.tags, &words.tags):
            batch.has_one_tag = False
        batch.room -= size
        batch.count += 1
        at = entry.end
    if batch.count:
        parts.append(made_part(entries, &batch, at, keys))
    return parts


cdef void begin_batch(Batch *batch, const uint8_t *at, Py_ssize_t words_max) noexcept:
    batch.at = at
    batch.count = 0
    batch.unique_id = batch.tags = NOTHING
    batch.has_one_tag = True
    batch.room = words_max + 1


cdef void begin_words(Batch *batch, const Words *words) noexcept:
    """Take over unique id and tag of the first message."""
    cdef size_t size_max = 4 * UNIQUE_ID_SIZE_MAX
    if words.unique_id.size <= size_max:
        batch.unique_id = words.unique_id
    if words.tags.size and <Py_ssize_t>words.tags.size + 1 <= batch.room:
        batch.tags = words.tags
        batch.room -= words.tags.size + 1


cdef inline bint is_same_tag(const Piece *one, const Piece *other) noexcept nogil:
    return one.size == other.size and (one.size == 0 or is_same(one, other))


cdef Py_ssize_t put_keys(dict keys, const Piece *words) except -1:
    """Put the distinct words that are not there yet into keys, in order.

    Return their size, with a separator after each."""
    cdef const uint8_t *at = words.at
    cdef const uint8_t *end = at + words.size
    cdef const uint8_t *space
    cdef Py_ssize_t size = 0, count = PyDict_Size(keys)
    while at < end:
        space = <const uint8_t *>memchr(at, c" ", end - at)
        if space == NULL:
            space = end
        if space > at:
            keys.setdefault((<const char *>at)[: space - at])
            if PyDict_Size(keys) > count:
                count += 1
                size += space - at + 1
        at = space + 1
    return size


cdef dict fitting(dict keys, Py_ssize_t *room):
    """Return the keys of a single message that fit; each lowers the room by its size."""
    cdef dict found = {}
    cdef Py_ssize_t size
    for key in keys:
        size = PyBytes_GET_SIZE(key) + 1
        if size <= room[0]:
            found[key] = None
            room[0] -= size
    return found


cdef object made_part(object entries, const Batch *batch, const uint8_t *end, dict keys):
    cdef const uint8_t *start = <const uint8_t *>PyBytes_AS_STRING(entries)
    if end - batch.at != PyBytes_GET_SIZE(entries):
        entries = entries[batch.at - start : end - start]
    return Part(
        entries,
        batch.count,
        bytes_of(&batch.unique_id),
        bytes_of(&batch.tags) if batch.has_one_tag else None,
        b" ".join(keys) if keys else None,
    )


cdef object bytes_of(const Piece *piece):
    return (<const char *>piece.at)[: piece.size] if piece.size else None


cdef bint read_words(const uint8_t *raw, size_t size, bint checks, Words *words) noexcept nogil:
    """Find tag, keys and unique id like ``properties.find``: the last of equal names wins.

    checks: whether to return False for properties that a batch request may not have."""
    cdef const uint8_t *at = raw
    cdef const uint8_t *end = raw + size
    cdef const uint8_t *stop
    cdef const uint8_t *mark
    cdef size_t characters, length
    cdef Piece name
    words.unique_id = words.tags = words.keys = NOTHING
    if checks and tidemark_text_has(raw, size) & TIDEMARK_HAS_HIGH:
        if not tidemark_is_utf8(raw, size, &characters):
            return False
    while at < end:
        stop = <const uint8_t *>memchr(at, PAIR_END, end - at)
        if stop == NULL:
            stop = end
        length = stop - at
        if length > 5 and memcmp(at, b"TAGS\x01", 5) == 0:
            words.tags.at = at + 5
            words.tags.size = length - 5
        elif length > 5 and memcmp(at, b"KEYS\x01", 5) == 0:
            words.keys.at = at + 5
            words.keys.size = length - 5
        elif length > 9 and memcmp(at, b"UNIQ_KEY\x01", 9) == 0:
            words.unique_id.at = at + 9
            words.unique_id.size = length - 9
            if checks and not is_text(&words.unique_id, False, UNIQUE_ID_SIZE_MAX):
                return False
        elif checks:
            mark = <const uint8_t *>memchr(at, 1, length)
            if mark == NULL or mark == at or mark + 1 == stop:
                return False
            name.at = at
            name.size = mark - at
            if is_refused(&name) and not tidemark_is(&name, b"__SHARDINGKEY", 13):
                return False
        at = stop + 1
    return True
