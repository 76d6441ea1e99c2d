"""Native implementation of ``checked_record.read_record``, which documents the contract.

``record.h`` checks the record. Cases that it leaves open (for example a record CRC property that
may be damaged) are passed to the pure implementation.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer, Py_buffer
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.object cimport PyObject, PyTypeObject
from cpython.ref cimport Py_INCREF
from cpython.tuple cimport PyTuple_SET_ITEM
from libc.stdint cimport INT64_MAX, INT64_MIN, int32_t, int64_t, uint8_t, uint32_t, uint64_t

from tidemark.formats import checked_record, hosts
from tidemark.formats.record import Record, topic_text

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
    int RECORD "TIDEMARK_RECORD"

    int tidemark_judge_record(
        const uint8_t *data, size_t room, int64_t at, int checks, tidemark_record *found
    ) nogil

cdef extern from "bigendian.h":
    uint32_t tidemark_get_32(const uint8_t *at) nogil
    uint64_t tidemark_get_64(const uint8_t *at) nogil

cdef extern from "Python.h":
    object PyType_GenericAlloc(PyTypeObject *type, Py_ssize_t count)

tidemark_crc32_prepare()

cdef enum:
    FIELDS = 17
    HOSTS_KEPT_MAX = 4096

cdef type RecordType = Record
assert len(Record._fields) == FIELDS

cdef dict kept_hosts = {}
"""Cache from the bytes of a host field to its Host; cleared when it grows too large."""


cdef object host_of(const uint8_t *at, Py_ssize_t size):
    raw = PyBytes_FromStringAndSize(<const char *>at, size)
    found = kept_hosts.get(raw)
    if found is None:
        if len(kept_hosts) >= HOSTS_KEPT_MAX:
            kept_hosts.clear()
        found = kept_hosts[raw] = hosts.decode(raw, v6=size == hosts.V6_SIZE)
    return found


cdef inline void put(object made, Py_ssize_t index, object field):
    Py_INCREF(field)
    PyTuple_SET_ITEM(made, index, field)


def read_record(view, *, at, checks):
    cdef Py_buffer borrowed
    cdef tidemark_record found
    cdef int flags = 0
    cdef const uint8_t *data
    cdef Py_ssize_t born_size, store_size
    cdef object made
    check_body, check_record, check_position, require_record = checks
    if check_body:
        flags |= CHECK_BODY_CRC
    if check_record:
        flags |= CHECK_RECORD_CRC
    if check_position:
        flags |= CHECK_POSITION
    if require_record:
        flags |= REQUIRE_RECORD_CRC
    if at is None or not INT64_MIN <= at <= INT64_MAX:
        return checked_record.read_record(view, at=at, checks=checks)
    PyObject_GetBuffer(view, &borrowed, PyBUF_SIMPLE)
    try:
        data = <const uint8_t *>borrowed.buf
        if tidemark_judge_record(data, <size_t>borrowed.len, at, flags, &found) != RECORD:
            return checked_record.read_record(view, at=at, checks=checks)
        born_size = 20 if found.sys_flag & 0x10 else 8
        store_size = 20 if found.sys_flag & 0x20 else 8
        made = PyType_GenericAlloc(<PyTypeObject *>RecordType, FIELDS)
        put(made, 0, found.size)
        put(made, 1, <int32_t>tidemark_get_32(data + 4))
        put(made, 2, <int32_t>tidemark_get_32(data + 8))
        put(made, 3, found.queue_id)
        put(made, 4, <int32_t>tidemark_get_32(data + 16))
        put(made, 5, found.queue_offset)
        put(made, 6, <int64_t>tidemark_get_64(data + 28))
        put(made, 7, found.sys_flag)
        put(made, 8, <int64_t>tidemark_get_64(data + 40))
        put(made, 9, host_of(data + 48, born_size))
        put(made, 10, found.store_timestamp_ms)
        put(made, 11, host_of(data + 56 + born_size, store_size))
        put(made, 12, <int32_t>tidemark_get_32(data + 56 + born_size + store_size))
        put(made, 13, <int64_t>tidemark_get_64(data + 60 + born_size + store_size))
        put(made, 14, memoryview(view)[found.body_at : found.body_at + found.body_size])
        put(
            made,
            15,
            topic_text(
                PyBytes_FromStringAndSize(<const char *>data + found.topic_at, found.topic_size)
            ),
        )
        put(
            made,
            16,
            PyBytes_FromStringAndSize(
                <const char *>data + found.properties_at, found.properties_size
            ),
        )
        return made
    finally:
        PyBuffer_Release(&borrowed)
