"""Python interface of the CRC-32 of crc32.h, which the other native modules compute inline."""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer, Py_buffer
from libc.stdint cimport uint32_t, uint8_t

cdef extern from "crc32.h":
    void tidemark_crc32_prepare()
    uint32_t tidemark_crc32(uint32_t crc, const uint8_t *data, size_t size) nogil

tidemark_crc32_prepare()


def crc32(data, value=0):
    cdef Py_buffer view
    cdef uint32_t crc = value
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        return tidemark_crc32(crc, <const uint8_t *>view.buf, <size_t>view.len)
    finally:
        PyBuffer_Release(&view)
