"""Native CRC-32, and the publication of a position with its check.

``checksum`` and ``checkpoint`` of ``tidemark.formats`` document the contracts. The CRC-32 is that
of crc32.h, which the other native modules compute inline.
"""

from cpython.buffer cimport (
    PyBUF_ND, PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer, Py_buffer
)
from libc.stdint cimport uint32_t, uint64_t, uint8_t

from tidemark.formats import checkpoint

cdef extern from "crc32.h":
    void tidemark_crc32_prepare()
    uint32_t tidemark_crc32(uint32_t crc, const uint8_t *data, size_t size) nogil

cdef extern from *:
    """
    /* Other processes read the slot meanwhile: one access, and after all stores before it. */
    static inline void tidemark_store_64(uint64_t *at, uint64_t value) {
        __atomic_store_n(at, value, __ATOMIC_RELEASE);
    }
    """
    void tidemark_store_64(uint64_t *at, uint64_t value) nogil

cdef Py_ssize_t VALUES_PER_REGION = checkpoint.VALUES_PER_REGION

tidemark_crc32_prepare()


def crc32(data, value=0):
    cdef Py_buffer view
    cdef uint32_t crc = value
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        return tidemark_crc32(crc, <const uint8_t *>view.buf, <size_t>view.len)
    finally:
        PyBuffer_Release(&view)


def publish(slots, Py_ssize_t slot, uint64_t value):
    cdef Py_buffer view
    cdef uint64_t *page
    cdef uint64_t check
    PyObject_GetBuffer(slots, &view, PyBUF_ND)
    try:
        if view.readonly:
            raise TypeError("cannot modify read-only memory")
        if slot < 0 or slot + VALUES_PER_REGION >= view.len // 8:
            raise IndexError(slot)
        page = <uint64_t *>view.buf
        check = <uint64_t>check_half(slot, value) << 32 | check_half(slot, page[slot])
        tidemark_store_64(page + slot + VALUES_PER_REGION, check)
        tidemark_store_64(page + slot, value)
    finally:
        PyBuffer_Release(&view)


cdef uint32_t check_half(uint64_t slot, uint64_t value) noexcept nogil:
    """Return the CRC-32 over both numbers, which are little-endian as on the whole page."""
    cdef uint64_t[2] covered
    covered[0] = slot
    covered[1] = value
    return tidemark_crc32(0, <const uint8_t *>covered, sizeof(covered))
