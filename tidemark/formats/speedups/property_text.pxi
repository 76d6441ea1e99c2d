# Rules of the text in properties: what a sender may write, and which names are refused.

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport uint8_t
from libc.string cimport memchr, memcmp

from tidemark.formats import properties

cdef extern from "text.h":
    enum:
        TIDEMARK_HAS_LOW
        TIDEMARK_HAS_SPACE
        TIDEMARK_HAS_HIGH
    int tidemark_text_has(const uint8_t *text, size_t size) nogil
    bint tidemark_is_utf8(const uint8_t *text, size_t size, size_t *characters) nogil

cdef extern from "msgpack.h":
    ctypedef struct Piece "tidemark_piece":
        const uint8_t *at
        size_t size
    bint tidemark_is(const Piece *piece, const char *text, size_t size) nogil

cdef enum:
    REFUSED_MAX = 128

assert len(properties.REFUSED) <= REFUSED_MAX

cdef Piece NOTHING = Piece(NULL, 0)
cdef Piece[REFUSED_MAX] REFUSED
cdef int refused_count = 0
cdef Piece[REFUSED_MAX] REFUSED_PREFIXES
cdef int refused_prefix_count = 0
cdef bint[256] REFUSED_BEGINS
"""Whether some refused name starts with the byte. Names of senders nearly never do."""
_refused = [name.encode("ascii") for name in sorted(properties.REFUSED)]
_refused_prefixes = [name.encode("ascii") for name in properties.REFUSED_PREFIXES]
for _raw in _refused:
    REFUSED[refused_count].at = <const uint8_t *>PyBytes_AS_STRING(_raw)
    REFUSED[refused_count].size = PyBytes_GET_SIZE(_raw)
    REFUSED_BEGINS[_raw[0]] = True
    refused_count += 1
for _raw in _refused_prefixes:
    REFUSED_PREFIXES[refused_prefix_count].at = <const uint8_t *>PyBytes_AS_STRING(_raw)
    REFUSED_PREFIXES[refused_prefix_count].size = PyBytes_GET_SIZE(_raw)
    REFUSED_BEGINS[_raw[0]] = True
    refused_prefix_count += 1


cdef inline bint is_same(const Piece *one, const Piece *other) noexcept nogil:
    return one.size == other.size and memcmp(one.at, other.at, one.size) == 0


cdef bint is_text(const Piece *text, bint with_spaces, size_t characters_max) noexcept nogil:
    """Return whether the text is non-empty UTF-8 without 0x01 and 0x02, as properties require."""
    cdef int has = tidemark_text_has(text.at, text.size)
    cdef size_t characters = text.size
    if text.size == 0 or (has & TIDEMARK_HAS_SPACE and not with_spaces):
        return False
    if has & TIDEMARK_HAS_HIGH and not tidemark_is_utf8(text.at, text.size, &characters):
        return False
    if characters > characters_max:
        return False
    return not has & TIDEMARK_HAS_LOW or (
        memchr(text.at, 1, text.size) == NULL and memchr(text.at, 2, text.size) == NULL
    )


cdef bint is_refused(const Piece *name) noexcept nogil:
    """Return ``properties.is_refused`` of a non-empty name."""
    cdef int number
    if not REFUSED_BEGINS[name.at[0]]:
        return False
    for number in range(refused_count):
        if is_same(&REFUSED[number], name):
            return True
    for number in range(refused_prefix_count):
        if (
            name.size >= REFUSED_PREFIXES[number].size
            and memcmp(name.at, REFUSED_PREFIXES[number].at, REFUSED_PREFIXES[number].size) == 0
        ):
            return True
    return False
