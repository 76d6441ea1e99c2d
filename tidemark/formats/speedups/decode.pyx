"""Native implementation of ``formats.message.decode_messages``.

Objects equal to those of the previous message are reused: topic, hosts, names and values of
properties. Anything that is not a valid record is passed to the pure implementation, which reports
the error.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer, Py_buffer
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.object cimport PyObject, PyTypeObject
from cpython.ref cimport Py_INCREF
from cpython.tuple cimport PyTuple_SET_ITEM
from libc.stdint cimport (
    INT64_MAX, int8_t, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
)
from libc.string cimport memchr, memcmp, memcpy

from tidemark.formats import hashing, hosts, properties
from tidemark.formats import message as pure
from tidemark.formats.inner_batch import message_count
from tidemark.formats.record import topic_text

cdef extern from "bigendian.h":
    uint16_t tidemark_get_16(const uint8_t *at) nogil
    uint32_t tidemark_get_32(const uint8_t *at) nogil
    uint64_t tidemark_get_64(const uint8_t *at) nogil

cdef extern from "crc32.h":
    void tidemark_crc32_prepare()
    uint32_t tidemark_crc32(uint32_t crc, const uint8_t *data, size_t size) nogil

cdef extern from "entry.h":
    ctypedef struct Entry "tidemark_entry":
        const uint8_t *body
        const uint8_t *properties
        size_t body_size
        size_t properties_size
        const uint8_t *end
    enum:
        TIDEMARK_ENTRY_FLAG_AT
    bint tidemark_read_entry(const uint8_t *at, size_t room, Entry *entry) nogil

cdef extern from "Python.h":
    object PyType_GenericAlloc(PyTypeObject *type, Py_ssize_t count)
    object PyUnicode_DecodeUTF8(const char *text, Py_ssize_t size, const char *errors)
    object PyUnicode_New(Py_ssize_t size, Py_UCS4 most)
    void *PyUnicode_DATA(object text)
    PyObject *PyDict_GetItem(object mapping, object name)
    void PyObject_GC_UnTrack(void *made)

tidemark_crc32_prepare()

cdef enum:
    FIELDS = 21
    RECORD_SIZE_MIN = 91
    MAGIC_V1 = 0xDAA320A7
    MAGIC_V2 = 0xDAA320AB
    PAIRS_KEPT = 16
    INNER_BATCH = 0x80
    BATCH_SYS_FLAGS = 0xC0

cdef type Message = pure.Message
assert len(Message._fields) == FIELDS

cdef str SCHEDULE_TOPIC = hashing.SCHEDULE_TOPIC
cdef str TAGS = properties.TAGS
cdef str KEYS = properties.KEYS
cdef str UNIQ_KEY = properties.UNIQ_KEY
cdef str DELAY = properties.DELAY
cdef const char *HEX = "0123456789ABCDEF"


cdef struct Piece:
    const uint8_t *at
    Py_ssize_t size


cdef inline bint _same(const Piece *kept, const uint8_t *at, Py_ssize_t size) noexcept:
    return kept.at != NULL and kept.size == size and not memcmp(kept.at, at, size)


cdef object _text(const uint8_t *at, Py_ssize_t size):
    """Equivalent of ``properties.text``."""
    try:
        return PyUnicode_DecodeUTF8(<const char *>at, size, NULL)
    except UnicodeDecodeError:
        return properties.text(PyBytes_FromStringAndSize(<const char *>at, size))


cdef struct Contents:  # what differs between the messages of one record
    int64_t queue_offset
    int32_t flag
    int32_t sys_flag
    int32_t body_crc
    const uint8_t *body
    Py_ssize_t body_size
    const uint8_t *properties
    Py_ssize_t properties_size


cdef class _Decoder:
    """Objects created for the previous message, with the bytes they were decoded from."""

    cdef object broker_group, queue, message_id_text, physical_offset, size
    cdef object born_timestamp_ms, store_timestamp_ms, reconsume_times, prepared_transaction_offset
    cdef Piece topic, born_host, store_host
    cdef object topic_text, born_text, store_text
    cdef dict host_texts
    cdef uint8_t id_prefix[40]
    cdef Py_ssize_t id_prefix_size
    cdef Piece names[PAIRS_KEPT]
    cdef Piece values[PAIRS_KEPT]
    cdef list name_texts, value_texts
    cdef object tags, tags_code, keys, keys_split
    cdef bint is_scheduled
    cdef int32_t queue_number

    def __cinit__(self, broker_group):
        self.broker_group = broker_group
        self.queue = None
        self.host_texts = {}
        self.name_texts = [None] * PAIRS_KEPT
        self.value_texts = [None] * PAIRS_KEPT
        self.tags = self.keys = None
        self.tags_code = 0
        self.keys_split = ()

    cdef int set_queue(self, int32_t number) except -1:
        if self.queue is not None and self.queue_number == number:
            return 0
        self.queue_number = number
        self.queue = number if self.broker_group is None else f"{self.broker_group}/{number}"
        return 0

    cdef object text_of_host(self, const uint8_t *at, Py_ssize_t size):
        raw = PyBytes_FromStringAndSize(<const char *>at, size)
        text = self.host_texts.get(raw)
        if text is None:
            text = self.host_texts[raw] = pure.host_text(hosts.decode(raw, v6=size == 20))
        return text

    cdef int set_store_host(self, const uint8_t *at, Py_ssize_t size) except -1:
        cdef Py_ssize_t index
        self.store_text = self.text_of_host(at, size)
        self.store_host.at = at
        self.store_host.size = size
        for index in range(size):
            self.id_prefix[2 * index] = HEX[at[index] >> 4]
            self.id_prefix[2 * index + 1] = HEX[at[index] & 15]
        self.id_prefix_size = 2 * size
        return 0

    cdef object message_id(self, uint64_t physical_offset):
        cdef Py_ssize_t size = self.id_prefix_size + 16, index
        text = PyUnicode_New(size, 127)
        cdef uint8_t *to = <uint8_t *>PyUnicode_DATA(text)
        memcpy(to, self.id_prefix, self.id_prefix_size)
        for index in range(size - 1, self.id_prefix_size - 1, -1):
            to[index] = HEX[physical_offset & 15]
            physical_offset >>= 4
        return text

    cdef dict properties(self, const uint8_t *at, Py_ssize_t left):
        """Equivalent of ``properties.parse``."""
        cdef dict found = {}
        cdef const uint8_t *stop
        cdef const uint8_t *middle
        cdef Py_ssize_t size, name_size, value_size, number = 0
        while left > 0:
            stop = <const uint8_t *>memchr(at, 2, left)
            size = left if stop == NULL else stop - at
            middle = <const uint8_t *>memchr(at, 1, size)
            if middle != NULL:
                name_size = middle - at
                value_size = size - name_size - 1
                if name_size and value_size:
                    if number < PAIRS_KEPT:
                        if not _same(&self.names[number], at, name_size):
                            self.name_texts[number] = _text(at, name_size)
                            self.names[number].at = at
                            self.names[number].size = name_size
                        middle += 1
                        if not _same(&self.values[number], middle, value_size):
                            self.value_texts[number] = _text(middle, value_size)
                            self.values[number].at = middle
                            self.values[number].size = value_size
                        found[self.name_texts[number]] = self.value_texts[number]
                        number += 1
                    else:
                        found[_text(at, name_size)] = _text(middle + 1, value_size)
            at += size + 1
            left -= size + 1
        return found

    cdef Py_ssize_t decode(
        self, list messages, const uint8_t *at, Py_ssize_t room
    ) except -1:
        """Append the messages of the record at ``at``; return its size, 0 if it is damaged.

        room: number of readable bytes.
        """
        cdef int32_t size, body_size, topic_size, properties_size, stored_crc
        cdef uint32_t magic, flags, crc
        cdef Py_ssize_t born_size, store_size, body_at, topic_at, properties_at, length_size, count
        if room < RECORD_SIZE_MIN:
            return 0
        size = <int32_t>tidemark_get_32(at)
        magic = tidemark_get_32(at + 4)
        if size < RECORD_SIZE_MIN or size > room:
            return 0
        if magic == MAGIC_V1:
            length_size = 1
        elif magic == MAGIC_V2:
            length_size = 2
        else:
            return 0
        flags = tidemark_get_32(at + 36)
        born_size = 20 if flags & 0x10 else 8
        store_size = 20 if flags & 0x20 else 8
        body_at = 72 + born_size + store_size
        if body_at > size:
            return 0
        body_size = <int32_t>tidemark_get_32(at + body_at - 4)
        if body_size < 0 or body_size > size - body_at - length_size - 2:
            return 0
        topic_at = body_at + body_size + length_size
        if length_size == 1:
            topic_size = <int8_t>at[topic_at - 1]
        else:
            topic_size = <int16_t>tidemark_get_16(at + topic_at - 2)
        if topic_size < 0 or topic_size > size - topic_at - 2:
            return 0
        properties_at = topic_at + topic_size + 2
        properties_size = <int16_t>tidemark_get_16(at + properties_at - 2)
        if properties_size < 0 or properties_at + properties_size != size:
            return 0
        stored_crc = <int32_t>tidemark_get_32(at + 8)
        if body_size:
            crc = tidemark_crc32(0, at + body_at, body_size) & 0x7FFFFFFF
            if <int32_t>crc != stored_crc:
                return 0

        if not _same(&self.topic, at + topic_at, topic_size):
            self.topic_text = topic_text(
                PyBytes_FromStringAndSize(<const char *>at + topic_at, topic_size)
            )
            self.topic.at = at + topic_at
            self.topic.size = topic_size
            self.is_scheduled = self.topic_text == SCHEDULE_TOPIC
        if not _same(&self.born_host, at + 48, born_size):
            self.born_text = self.text_of_host(at + 48, born_size)
            self.born_host.at = at + 48
            self.born_host.size = born_size
        if not _same(&self.store_host, at + 56 + born_size, store_size):
            self.set_store_host(at + 56 + born_size, store_size)
        cdef uint64_t physical_offset = tidemark_get_64(at + 28)
        cdef const uint8_t *behind = at + 56 + born_size + store_size
        self.size = size
        self.set_queue(<int32_t>tidemark_get_32(at + 12))
        self.message_id_text = self.message_id(physical_offset)
        self.physical_offset = <int64_t>physical_offset
        self.born_timestamp_ms = <int64_t>tidemark_get_64(at + 40)
        self.store_timestamp_ms = <int64_t>tidemark_get_64(at + 48 + born_size)
        self.reconsume_times = <int32_t>tidemark_get_32(behind)
        self.prepared_transaction_offset = <int64_t>tidemark_get_64(behind + 4)

        cdef Contents one
        one.queue_offset = <int64_t>tidemark_get_64(at + 20)
        one.flag = <int32_t>tidemark_get_32(at + 16)
        one.sys_flag = <int32_t>flags
        one.body_crc = stored_crc
        one.body = at + body_at
        one.body_size = body_size
        one.properties = at + properties_at
        one.properties_size = properties_size
        if flags & INNER_BATCH:
            raw_properties = PyBytes_FromStringAndSize(
                <const char *>one.properties, properties_size
            )
            count = message_count(one.sys_flag, raw_properties, one.queue_offset)
            if count:
                return size if self.unpack(messages, &one, count, size) else 0
        messages.append(self.made(&one))
        return size

    cdef bint unpack(
        self, list messages, const Contents *batch, Py_ssize_t count, Py_ssize_t size
    ) except -1:
        """Append the messages of an inner batch; False if its body has not ``count`` entries.

        size: that of the record.
        """
        cdef const uint8_t *at = batch.body
        cdef const uint8_t *end = at + batch.body_size
        cdef Py_ssize_t number
        cdef Entry entry
        cdef Contents one
        if batch.queue_offset > INT64_MAX - count:
            return False
        one.sys_flag = batch.sys_flag & ~BATCH_SYS_FLAGS
        size -= batch.body_size + batch.properties_size
        for number in range(count):
            if not tidemark_read_entry(at, end - at, &entry):
                return False
            one.queue_offset = batch.queue_offset + number
            one.flag = <int32_t>tidemark_get_32(at + TIDEMARK_ENTRY_FLAG_AT)
            one.body_crc = <int32_t>(
                tidemark_crc32(0, entry.body, entry.body_size) & 0x7FFFFFFF
            )
            one.body = entry.body
            one.body_size = entry.body_size
            one.properties = entry.properties
            one.properties_size = entry.properties_size
            self.size = size + one.body_size + one.properties_size
            messages.append(self.made(&one))
            at = entry.end
        return at == end

    cdef object made(self, const Contents *one):
        """Return a message of the record that was read last."""
        cdef dict found = self.properties(one.properties, one.properties_size)
        cdef PyObject *tags = PyDict_GetItem(found, TAGS)
        cdef PyObject *keys = PyDict_GetItem(found, KEYS)
        cdef PyObject *unique_id = PyDict_GetItem(found, UNIQ_KEY)
        if tags != NULL and <object>tags is not self.tags:
            self.tags = <object>tags
            self.tags_code = hashing.tags_code(self.tags)
        if keys != NULL and <object>keys is not self.keys:
            self.keys = <object>keys
            if " " in <str>self.keys:
                self.keys_split = tuple([key for key in (<str>self.keys).split(" ") if key])
            else:
                self.keys_split = (self.keys,)
        tags_code = self.tags_code if tags != NULL else 0
        if self.is_scheduled and PyDict_GetItem(found, DELAY) != NULL:
            tags_code = None

        message = PyType_GenericAlloc(<PyTypeObject *>Message, FIELDS)
        _put(message, 0, self.topic_text)
        _put(message, 1, self.queue)
        _put(message, 2, one.queue_offset)
        _put(message, 3, PyBytes_FromStringAndSize(<const char *>one.body, one.body_size))
        _put(message, 4, self.message_id_text)
        _put(message, 5, <object>unique_id if unique_id != NULL else None)
        _put(message, 6, self.physical_offset)
        _put(message, 7, self.size)
        _put(message, 8, <object>tags if tags != NULL else None)
        _put(message, 9, self.keys_split if keys != NULL else ())
        _put(message, 10, found)
        _put(message, 11, self.born_timestamp_ms)
        _put(message, 12, self.store_timestamp_ms)
        _put(message, 13, self.born_text)
        _put(message, 14, self.store_text)
        _put(message, 15, self.reconsume_times)
        _put(message, 16, one.flag)
        _put(message, 17, one.sys_flag)
        _put(message, 18, one.body_crc)
        _put(message, 19, tags_code)
        _put(message, 20, self.prepared_transaction_offset)
        # Its fields are numbers, texts and containers of texts, so it is part of no cycle. The
        # garbage collector visited the buffered messages again and again, for a fifth of a
        # consumer's time.
        PyObject_GC_UnTrack(<void *>message)
        return message


cdef inline void _put(made, Py_ssize_t number, value):
    Py_INCREF(value)  # the tuple steals a reference
    PyTuple_SET_ITEM(made, number, value)


def decode_messages(raw, broker_group=None):
    cdef Py_buffer view
    cdef _Decoder decoder = _Decoder(broker_group)
    cdef list messages = []
    cdef const uint8_t *at
    cdef Py_ssize_t left, size
    PyObject_GetBuffer(raw, &view, PyBUF_SIMPLE)
    try:
        at = <const uint8_t *>view.buf
        left = view.len
        while left > 0:
            size = decoder.decode(messages, at, left)
            if not size:
                return pure.decode_messages(raw, broker_group)  # raises an error with the cause and the position
            at += size
            left -= size
    finally:
        PyBuffer_Release(&view)
    return messages
