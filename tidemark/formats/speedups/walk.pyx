"""Native implementation of ``scan.walk`` and ``plan.plan_range``, which document the contracts.

``record.h`` checks records in the mapping itself. A plan creates no Python object per record: units
and rows are appended to two growing arrays, and a third one stores the run of each unit. Python
objects are created once per run and once per queue. Cases that ASCII rules do not decide (other
texts, a DELAY that is not a plain number, a doubtful record CRC) are passed to the pure
implementation.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer, Py_buffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.ref cimport Py_INCREF
from cpython.tuple cimport PyTuple_SET_ITEM
from cpython.unicode cimport PyUnicode_DecodeASCII
from libc.stdint cimport (
    INT64_MAX,
    INT64_MIN,
    int32_t,
    int64_t,
    uint8_t,
    uint32_t,
    uint64_t,
)
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memchr, memcmp, memcpy

from tidemark.formats import hashing, plan as pure_plan, properties, queue_unit, scan
from tidemark.formats.inner_batch import message_count
from tidemark.formats.plan import Plan, PlannedRange, QueueRun
from tidemark.formats.record import topic_text
from tidemark.formats.record_check import record_crc_fault
from tidemark.formats.queue_unit import Unit
from tidemark.formats.scan import Entry, Stop, Walk

cdef extern from "record.h":
    void tidemark_crc32_prepare()

    ctypedef struct tidemark_record:
        uint32_t size
        int32_t sys_flag
        int32_t queue_id
        int64_t queue_offset
        int64_t store_timestamp_ms
        uint32_t topic_at
        uint32_t topic_size
        uint32_t properties_at
        uint32_t properties_size

    ctypedef struct tidemark_value:
        const uint8_t *data
        uint32_t size

    ctypedef struct tidemark_properties:
        tidemark_value tags
        tidemark_value keys
        tidemark_value unique_id
        tidemark_value delay

    int CHECK_BODY_CRC "TIDEMARK_CHECK_BODY_CRC"
    int CHECK_RECORD_CRC "TIDEMARK_CHECK_RECORD_CRC"
    int CHECK_POSITION "TIDEMARK_CHECK_POSITION"
    int REQUIRE_RECORD_CRC "TIDEMARK_REQUIRE_RECORD_CRC"
    int NO_RECORD "TIDEMARK_NO_RECORD"
    int ASK "TIDEMARK_ASK"
    int RECORD_SIZE_MIN "TIDEMARK_RECORD_SIZE_MIN"

    int tidemark_judge_record(
        const uint8_t *data, size_t room, int64_t at, int checks, tidemark_record *found
    ) nogil
    void tidemark_find_properties(
        const uint8_t *data, const tidemark_record *found, tidemark_properties *wanted
    ) nogil
    uint32_t tidemark_string_hash(
        uint32_t hash, const uint8_t *data, size_t size, uint8_t *others
    ) nogil
    int64_t tidemark_index_hash(uint32_t hash) nogil
    uint64_t tidemark_table_hash(
        const uint8_t *data, size_t size, int32_t queue_id, uint64_t seed
    ) nogil
    void tidemark_store_unit(uint8_t *data, int64_t at, uint32_t size, int64_t code) nogil

cdef extern from *:
    """
    static PyObject *tidemark_new_tuple(PyObject *type, Py_ssize_t size) {
        return ((PyTypeObject *)type)->tp_alloc((PyTypeObject *)type, size);
    }
    """
    object tidemark_new_tuple(object type, Py_ssize_t size)

tidemark_crc32_prepare()

cdef enum:
    UNIT_SIZE = 20
    BATCH_UNIT_SIZE = 46
    ROW_WORDS = 3
    TRANSACTION_MASK = 0xC
    PREPARED = 0x4
    ROLLBACK = 0xC
    INNER_BATCH = 0x80
    UNLOCKED_SIZE = 65536  # for less work, releasing the GIL costs more than it gains
    DELAY_DIGITS_MAX = 9  # a number of that many digits fits into 32 bits

# Random per process, like the seed of Python's dicts, so that names cannot be made to collide.
cdef uint64_t SEED = <uint64_t><int64_t>hash(b"tidemark")
cdef object NEW_TUPLE = tuple.__new__
cdef Py_ssize_t ENTRY_FIELDS = len(Entry._fields)


cdef struct Group:
    # One (topic, queue) of the records. The topic's bytes are those of its first record.
    const uint8_t *topic
    uint32_t topic_size
    int32_t queue_id
    uint64_t hash
    Py_ssize_t same_as  # number of the group of the same text with other bytes
    Py_ssize_t run  # number of the open run; -1 before the first
    bint of_batches  # whether the open run has units of inner batches
    int64_t next_offset
    uint32_t topic_hash  # of "topic#"
    bint is_schedule
    bint of_batch_topic


cdef struct Run:
    Py_ssize_t group
    int64_t first
    int64_t at
    Py_ssize_t count


cdef int checks_of(checks) except -1:
    body_crc, record_crc, position, require_record_crc = checks
    return (
        (CHECK_BODY_CRC if body_crc else 0)
        | (CHECK_RECORD_CRC if record_crc else 0)
        | (CHECK_POSITION if position else 0)
        | (REQUIRE_RECORD_CRC if require_record_crc else 0)
    )


cdef bytes raw(tidemark_value value):
    return PyBytes_FromStringAndSize(<const char *>value.data, value.size)


cdef bint is_ascii(tidemark_value value) noexcept nogil:
    cdef uint8_t others = 0
    tidemark_string_hash(0, value.data, value.size, &others)
    return others < 0x80


cdef str text(tidemark_value value):
    if is_ascii(value):
        # This is a second read, so another process may have changed the bytes: do not fail.
        return PyUnicode_DecodeASCII(<const char *>value.data, value.size, b"replace")
    return properties.text(raw(value))


cdef void *grown(void *array, Py_ssize_t *room, Py_ssize_t size) noexcept nogil:
    """Return the array with twice the room [elements]; NULL if that fails: it is unchanged then."""
    cdef Py_ssize_t wanted = room[0] * 2 if room[0] else 256
    cdef void *larger = realloc(array, <size_t>wanted * <size_t>size)
    if larger != NULL:
        room[0] = wanted
    return larger


cdef class Walker:
    """One pass over a view: the checked records and the queues they belong to."""

    cdef object view, batch_topics
    cdef Py_buffer buffer
    cdef bint is_held
    cdef const uint8_t *data
    cdef size_t size
    cdef size_t end  # end of the last processed record
    cdef int64_t at
    cdef Py_ssize_t left
    cdef int checks
    cdef bint require_record_crc
    cdef object delay_levels_ms
    cdef int64_t *levels_ms
    cdef Py_ssize_t level_count

    cdef list texts  # topics of the groups
    cdef dict not_ascii  # (topic, queue) of groups that are not ASCII → number of the first
    cdef Group *groups
    cdef Py_ssize_t group_count, group_room
    cdef int32_t *table  # open addressing: number of a group + 1; 0 is free
    cdef Py_ssize_t table_size

    cdef uint8_t *units
    cdef Py_ssize_t unit_count, unit_room
    cdef dict batches  # number of a run of inner batches → its units
    cdef Py_ssize_t batch_count
    cdef int32_t *run_of  # number of the run of each unit
    cdef Py_ssize_t run_of_room
    cdef Run *runs
    cdef Py_ssize_t run_count, run_room
    cdef int64_t *rows
    cdef Py_ssize_t row_count, row_room
    cdef Py_ssize_t record_count
    cdef int64_t unit_timestamp_ms

    def __cinit__(self, view, at, checks, records_max, delay_levels_ms, batch_topics):
        cdef Py_ssize_t number
        PyObject_GetBuffer(view, &self.buffer, PyBUF_SIMPLE)
        self.is_held = True
        self.view = view
        self.data = <const uint8_t *>self.buffer.buf
        self.size = <size_t>self.buffer.len
        self.at = at
        # Upper limit of the records in a view, because records_max may be any number.
        self.left = max(0, min(records_max, self.buffer.len // RECORD_SIZE_MIN + 1))
        self.checks = checks_of(checks)
        self.require_record_crc = bool(checks.require_record_crc)
        self.batch_topics = batch_topics
        self.texts = []
        self.not_ascii = {}
        self.batches = {}
        self.delay_levels_ms = delay_levels_ms
        self.level_count = len(delay_levels_ms)
        self.levels_ms = <int64_t *>malloc(<size_t>max(1, self.level_count) * sizeof(int64_t))
        self.table_size = 128
        self.table = <int32_t *>calloc(<size_t>self.table_size, sizeof(int32_t))
        if self.levels_ms == NULL or self.table == NULL:
            raise MemoryError
        for number in range(self.level_count):
            self.levels_ms[number] = delay_levels_ms[number]

    def __dealloc__(self):
        free(self.levels_ms)
        free(self.groups)
        free(self.table)
        free(self.units)
        free(self.run_of)
        free(self.runs)
        free(self.rows)
        if self.is_held:
            PyBuffer_Release(&self.buffer)

    cdef int next(self, tidemark_record *found) except -1 nogil:
        """Check the record at ``end``; return 0 if there is none."""
        cdef int judged = tidemark_judge_record(
            self.data + self.end, self.size - self.end, self.at + <int64_t>self.end, self.checks, found
        )
        if judged == ASK:
            with gil:
                if record_crc_fault(
                    self.view,
                    self.end,
                    found.size,
                    found.properties_size,
                    required=self.require_record_crc,
                ):
                    return 0
        return judged != NO_RECORD

    # -- queues -------------------------------------------------------------------------------

    cdef Py_ssize_t group_of(
        self, const uint8_t *topic, uint32_t topic_size, int32_t queue_id
    ) except -1 nogil:
        """Return the number of the group of these bytes; create the group if it is new."""
        cdef uint64_t hashed = tidemark_table_hash(topic, topic_size, queue_id, SEED)
        cdef Py_ssize_t slot = <Py_ssize_t>(hashed & <uint64_t>(self.table_size - 1))
        cdef Group *group
        while self.table[slot]:
            group = &self.groups[self.table[slot] - 1]
            if (
                group.hash == hashed
                and group.queue_id == queue_id
                and group.topic_size == topic_size
                and memcmp(group.topic, topic, topic_size) == 0
            ):
                return group.same_as
            slot = (slot + 1) & (self.table_size - 1)
        with gil:
            return self.add_group(topic, topic_size, queue_id, hashed)

    cdef Py_ssize_t add_group(
        self, const uint8_t *topic, uint32_t topic_size, int32_t queue_id, uint64_t hashed
    ) except -1:
        cdef Py_ssize_t number = self.group_count
        cdef Group *group
        cdef void *larger
        if number == self.group_room:
            larger = grown(self.groups, &self.group_room, sizeof(Group))
            if larger == NULL:
                raise MemoryError
            self.groups = <Group *>larger
        name = topic_text(PyBytes_FromStringAndSize(<const char *>topic, topic_size))
        group = &self.groups[number]
        group.topic = topic
        group.topic_size = topic_size
        group.queue_id = queue_id
        group.hash = hashed
        group.same_as = number
        group.run = -1
        group.next_offset = 0
        group.topic_hash = hashing.topic_hash(name)
        group.is_schedule = name == hashing.SCHEDULE_TOPIC
        group.of_batch_topic = name in self.batch_topics
        if not name.isascii():
            # Different bytes may decode to the same text, because invalid UTF-8 is replaced.
            group.same_as = self.not_ascii.setdefault((name, queue_id), number)
        self.texts.append(name)
        self.group_count += 1
        self.enter(number)
        return group.same_as

    cdef int enter(self, Py_ssize_t number) except -1:
        """Add a group to the table, whose size is doubled when it is half full."""
        cdef Py_ssize_t slot, first = number
        cdef int32_t *larger
        if 2 * self.group_count > self.table_size:
            larger = <int32_t *>calloc(2 * <size_t>self.table_size, sizeof(int32_t))
            if larger == NULL:
                raise MemoryError
            free(self.table)
            self.table, self.table_size, first = larger, 2 * self.table_size, 0
        for number in range(first, number + 1):
            slot = <Py_ssize_t>(self.groups[number].hash & <uint64_t>(self.table_size - 1))
            while self.table[slot]:
                slot = (slot + 1) & (self.table_size - 1)
            self.table[slot] = <int32_t>(number + 1)
        return 0

    # -- planning -----------------------------------------------------------------------------

    cdef int plan(self, bint index) except -1 nogil:
        """Process records up to the first invalid one, or up to the requested number."""
        cdef tidemark_record found
        cdef tidemark_properties wanted
        cdef const uint8_t *start
        cdef Py_ssize_t group, batch_size
        cdef bint has_unit
        while self.left > 0 and self.next(&found):
            start = self.data + self.end
            if found.sys_flag & TRANSACTION_MASK != ROLLBACK:
                tidemark_find_properties(start, &found, &wanted)
                has_unit = found.sys_flag & TRANSACTION_MASK != PREPARED
                batch_size = 0
                if found.sys_flag & INNER_BATCH:
                    with gil:
                        batch_size = self.batch_size(&found)
                    has_unit = has_unit and batch_size > 0
                if has_unit or (index and (wanted.unique_id.size or wanted.keys.size)):
                    group = self.group_of(
                        start + found.topic_at, found.topic_size, found.queue_id
                    )
                    if index:
                        self.add_rows(group, &found, &wanted)
                    if has_unit and (batch_size or self.groups[group].of_batch_topic):
                        with gil:
                            self.add_batch(group, &found, &wanted, batch_size or 1)
                    elif has_unit:
                        self.add_unit(group, &found, &wanted)
            self.end += found.size
            self.record_count += 1
            self.left -= 1
        return 0

    cdef int add_unit(
        self, Py_ssize_t number, tidemark_record *found, tidemark_properties *wanted
    ) except -1 nogil:
        cdef Group *group = &self.groups[number]
        cdef int64_t tags_code = self.tags_code(group.is_schedule, found, wanted)
        cdef void *larger
        if (
            group.run < 0
            or group.of_batches
            or found.queue_offset == INT64_MIN
            or found.queue_offset != group.next_offset
        ):
            self.begin_run(number, found)
            group.of_batches = False
        if self.unit_count == self.unit_room:
            larger = grown(self.units, &self.unit_room, UNIT_SIZE)
            if larger != NULL:
                self.units = <uint8_t *>larger
                larger = grown(self.run_of, &self.run_of_room, sizeof(int32_t))
            if larger == NULL:
                with gil:
                    raise MemoryError
            self.run_of = <int32_t *>larger
        tidemark_store_unit(
            self.units + self.unit_count * UNIT_SIZE,
            self.at + <int64_t>self.end,
            found.size,
            tags_code,
        )
        self.run_of[self.unit_count] = <int32_t>group.run
        self.runs[group.run].count += 1
        self.unit_count += 1
        # Wraps after the largest offset, and the smallest offset never continues a run.
        group.next_offset = <int64_t>(<uint64_t>found.queue_offset + 1)
        self.unit_timestamp_ms = found.store_timestamp_ms
        return 0

    cdef Py_ssize_t batch_size(self, tidemark_record *found) except -1:
        """Return the number of messages of an inner batch; 0 if it has no unit."""
        raw_properties = PyBytes_FromStringAndSize(
            <const char *>self.data + self.end + found.properties_at, found.properties_size
        )
        return message_count(found.sys_flag, raw_properties, found.queue_offset)

    cdef int add_batch(
        self,
        Py_ssize_t number,
        tidemark_record *found,
        tidemark_properties *wanted,
        Py_ssize_t batch_size,
    ) except -1:
        """Append the unit of an inner batch. It is rare: one for many messages."""
        cdef Group *group = &self.groups[number]
        cdef int64_t tags_code = self.tags_code(group.is_schedule, found, wanted)
        if group.run < 0 or not group.of_batches or found.queue_offset != group.next_offset:
            self.begin_run(number, found)
            group.of_batches = True
            self.batches[group.run] = bytearray()
        unit = Unit(self.at + <int64_t>self.end, found.size, tags_code)
        self.batches[group.run] += queue_unit.encode_batch(
            unit, found.store_timestamp_ms, found.queue_offset, batch_size
        )
        self.batch_count += 1
        # Wraps after the largest offset, and a base is never negative.
        group.next_offset = <int64_t>(<uint64_t>found.queue_offset + <uint64_t>batch_size)
        self.unit_timestamp_ms = found.store_timestamp_ms
        return 0

    cdef int begin_run(self, Py_ssize_t number, tidemark_record *found) except -1 nogil:
        cdef Group *group = &self.groups[number]
        cdef Run *run
        cdef void *larger
        if group.run < 0:
            with gil:
                pure_plan.check_names(
                    self.texts[number],
                    found.queue_id,
                    found.queue_offset,
                    self.at + <int64_t>self.end,
                )
        if self.run_count == self.run_room:
            larger = grown(self.runs, &self.run_room, sizeof(Run))
            if larger == NULL:
                with gil:
                    raise MemoryError
            self.runs = <Run *>larger
        run = &self.runs[self.run_count]
        run.group = number
        run.first = found.queue_offset
        run.at = self.at + <int64_t>self.end
        run.count = 0
        group.run = self.run_count
        self.run_count += 1
        return 0

    cdef int64_t tags_code(
        self, bint is_schedule, tidemark_record *found, tidemark_properties *wanted
    ) except? -1 nogil:
        """Set the unit's code: the due time of a delayed record, else the hash of the tags."""
        cdef uint8_t others = 0
        cdef uint32_t hashed
        cdef int64_t due
        if is_schedule and wanted.delay.size and self.due_time(found, &wanted.delay, &due):
            return due
        if not wanted.tags.size:
            return 0
        hashed = tidemark_string_hash(0, wanted.tags.data, wanted.tags.size, &others)
        if others < 0x80:
            return <int32_t>hashed
        with gil:
            return hashing.string_hash(properties.text(raw(wanted.tags)))

    cdef int due_time(
        self, tidemark_record *found, tidemark_value *delay, int64_t *due
    ) except -1 nogil:
        """Compute ``hashing.delivery_time_code``: whether a record is delayed, and until when."""
        cdef Py_ssize_t level = 0
        cdef uint32_t digit
        cdef bint is_plain = delay.size <= DELAY_DIGITS_MAX
        if is_plain:
            for digit in range(delay.size):
                is_plain = is_plain and c"0" <= delay.data[digit] <= c"9"
                level = level * 10 + delay.data[digit] - c"0"
        if not is_plain:
            with gil:
                code = hashing.delivery_time_code(
                    text(delay[0]), found.store_timestamp_ms, self.delay_levels_ms
                )
                if code is None:
                    return 0
                due[0] = code
                return 1
        level = min(level, self.level_count)
        if level == 0:
            return 0
        due[0] = <int64_t>(
            <uint64_t>found.store_timestamp_ms + <uint64_t>self.levels_ms[level - 1]
        )
        return 1

    cdef int add_rows(
        self, Py_ssize_t number, tidemark_record *found, tidemark_properties *wanted
    ) except -1 nogil:
        """Append a row for the unique id and one for each key of KEYS, separated by spaces."""
        cdef uint32_t topic_hash = self.groups[number].topic_hash
        cdef const uint8_t *start = wanted.keys.data
        cdef const uint8_t *end = start + wanted.keys.size
        cdef const uint8_t *stop
        if wanted.unique_id.size:
            self.add_row(number, topic_hash, found, wanted.unique_id.data, wanted.unique_id.size)
        while start < end:
            stop = <const uint8_t *>memchr(start, c" ", <size_t>(end - start))
            if stop == NULL:
                stop = end
            if stop > start:
                self.add_row(number, topic_hash, found, start, <size_t>(stop - start))
            start = stop + 1
        return 0

    cdef int add_row(
        self,
        Py_ssize_t number,
        uint32_t topic_hash,
        tidemark_record *found,
        const uint8_t *key,
        size_t size,
    ) except -1 nogil:
        cdef uint8_t others = 0
        cdef int64_t hashed = tidemark_index_hash(
            tidemark_string_hash(topic_hash, key, size, &others)
        )
        cdef int64_t *row
        cdef void *larger
        if others >= 0x80:
            with gil:
                # Invalid UTF-8 is replaced per sequence, and no such sequence contains a space.
                hashed = hashing.index_hash(
                    self.texts[number],
                    properties.text(PyBytes_FromStringAndSize(<const char *>key, <Py_ssize_t>size)),
                )
        if self.row_count == self.row_room:
            larger = grown(self.rows, &self.row_room, ROW_WORDS * sizeof(int64_t))
            if larger == NULL:
                with gil:
                    raise MemoryError
            self.rows = <int64_t *>larger
        row = self.rows + ROW_WORDS * self.row_count
        row[0] = self.at + <int64_t>self.end
        row[1] = found.store_timestamp_ms
        row[2] = hashed
        self.row_count += 1
        return 0

    cdef object planned(self):
        """Return the plan in the form of the pure implementation."""
        cdef Py_ssize_t number, run
        cdef uint8_t **ends
        cdef list runs = []
        cdef bytes units
        if self.run_count:
            ends = <uint8_t **>malloc(<size_t>self.run_count * sizeof(uint8_t *))
            if ends == NULL:
                raise MemoryError
            try:
                for number in range(self.run_count):
                    batch_units = self.batches.get(number)
                    if batch_units is not None:
                        units = bytes(batch_units)
                    else:
                        units = PyBytes_FromStringAndSize(
                            NULL, self.runs[number].count * UNIT_SIZE
                        )
                    ends[number] = <uint8_t *>PyBytes_AS_STRING(units)
                    runs.append(
                        NEW_TUPLE(
                            QueueRun,
                            (
                                self.texts[self.runs[number].group],
                                self.groups[self.runs[number].group].queue_id,
                                self.runs[number].first,
                                units,
                                self.runs[number].at,
                                UNIT_SIZE if batch_units is None else BATCH_UNIT_SIZE,
                            ),
                        )
                    )
                for number in range(self.unit_count):
                    run = self.run_of[number]
                    memcpy(ends[run], self.units + number * UNIT_SIZE, UNIT_SIZE)
                    ends[run] += UNIT_SIZE
            finally:
                free(ends)
        return Plan(
            runs,
            PyBytes_FromStringAndSize(
                <const char *>self.rows, self.row_count * ROW_WORDS * <Py_ssize_t>sizeof(int64_t)
            )
            if self.row_count
            else b"",
            self.record_count,
            self.unit_count + self.batch_count,
            self.unit_timestamp_ms,
        )

    # -- walking ------------------------------------------------------------------------------

    cdef list entries(self):
        """Return valid records as ``scan.Entry``, up to the requested number."""
        cdef tidemark_record found
        cdef tidemark_properties wanted
        cdef const uint8_t *start
        cdef Py_ssize_t group
        cdef list made = []
        while self.left > 0 and self.next(&found):
            start = self.data + self.end
            tidemark_find_properties(start, &found, &wanted)
            group = self.group_of(start + found.topic_at, found.topic_size, 0)
            made.append(self.entry(group, &found, &wanted))
            self.end += found.size
            self.left -= 1
        return made

    cdef object entry(
        self, Py_ssize_t group, tidemark_record *found, tidemark_properties *wanted
    ):
        tags_code = self.tags_code(self.groups[group].is_schedule, found, wanted)
        unique_id = text(wanted.unique_id) if wanted.unique_id.size else None
        keys = text(wanted.keys) if wanted.keys.size else ""
        # Like tuple.__new__, without creating the argument tuple.
        cdef object made = tidemark_new_tuple(Entry, ENTRY_FIELDS)
        put(made, 0, self.at + <int64_t>self.end)
        put(made, 1, found.size)
        put(made, 2, self.texts[group])
        put(made, 3, found.queue_id)
        put(made, 4, found.queue_offset)
        put(made, 5, tags_code)
        put(made, 6, found.store_timestamp_ms)
        put(made, 7, found.sys_flag)
        put(made, 8, unique_id)
        put(made, 9, keys)
        put(made, 10, self.batch_size(found) if found.sys_flag & INNER_BATCH else 0)
        return made

    cdef object stopped(self, checks):
        """Return why the walk ended, as a ``Walk`` without entries."""
        if self.left <= 0:
            return Walk([], self.end, Stop.LIMIT, "")
        return scan.stopped(self.view, self.end, self.at, checks, [])


cdef inline void put(made, Py_ssize_t number, value):
    Py_INCREF(value)
    PyTuple_SET_ITEM(made, number, value)


cdef bint is_beyond(view, at):
    """Return whether physical offsets would exceed 63 bits."""
    return not 0 <= at <= INT64_MAX - len(view)


def walk(view, *, at, checks, records_max, delay_levels_ms):
    cdef Walker walker
    if is_beyond(view, at):
        return scan.walk(
            view, at=at, checks=checks, records_max=records_max, delay_levels_ms=delay_levels_ms
        )
    walker = Walker(view, at, checks, records_max, delay_levels_ms, ())
    entries = walker.entries()
    return walker.stopped(checks)._replace(entries=entries)


def plan_range(
    view, *, at, checks, records_max, delay_levels_ms, index, batch_topics=frozenset()
):
    cdef Walker walker
    cdef bint with_rows = index
    if is_beyond(view, at):
        return pure_plan.plan_range(
            view,
            at=at,
            checks=checks,
            records_max=records_max,
            delay_levels_ms=delay_levels_ms,
            index=index,
            batch_topics=batch_topics,
        )
    walker = Walker(view, at, checks, records_max, delay_levels_ms, batch_topics)
    if walker.size < UNLOCKED_SIZE:
        walker.plan(with_rows)
    else:
        with nogil:
            walker.plan(with_rows)
    _, end, stop, reason = walker.stopped(checks)
    return PlannedRange(walker.planned(), end, stop, reason)
