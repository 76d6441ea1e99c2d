"""Native implementation of ``queue_unit.leading_units``.

It checks a gigabyte of units in some tenths of a second.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer, Py_buffer
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t

cdef extern from "bigendian.h":
    uint32_t tidemark_get_32(const uint8_t *at) nogil
    uint64_t tidemark_get_64(const uint8_t *at) nogil

cdef enum:
    PRE_BLANK_SIZE = 0x7FFFFFFF
    LONG = 64 * 1024


def leading_units(view, *, int64_t end, int64_t end_max, Py_ssize_t unit_size=20):
    cdef Py_buffer buffer
    cdef Py_ssize_t count, units
    PyObject_GetBuffer(view, &buffer, PyBUF_SIMPLE)
    try:
        units = buffer.len // unit_size
        if buffer.len < LONG:
            count = leading(<const uint8_t *>buffer.buf, units, unit_size, &end, end_max)
        else:
            with nogil:
                count = leading(<const uint8_t *>buffer.buf, units, unit_size, &end, end_max)
    finally:
        PyBuffer_Release(&buffer)
    return count, end


cdef Py_ssize_t leading(
    const uint8_t *at, Py_ssize_t units, Py_ssize_t unit_size, int64_t *end, int64_t end_max
) noexcept nogil:
    """Read only at[0 : units * unit_size], each field once: the file may change meanwhile."""
    cdef Py_ssize_t number
    cdef int64_t offset
    cdef int32_t size
    for number in range(units):
        offset = <int64_t>tidemark_get_64(at)
        size = <int32_t>tidemark_get_32(at + 8)
        if size <= 0 or offset < end[0]:
            return number
        if offset != 0 or size != PRE_BLANK_SIZE:
            if offset > end_max or size > end_max - offset:  # offset + size may overflow
                return number
            end[0] = offset + size
        elif end[0] != 0:
            return number
        at += unit_size
    return units
