/* Checks records in the mapping itself (docs/formats.md, 2.1 to 2.14).
 *
 * The rules are those of record_check.validate. No reason is returned for an invalid record: the
 * caller gets it from validate. The bytes may be hostile and may change meanwhile, so every length
 * is loaded once, checked against the room, and only that copy is used.
 * Each module must call tidemark_crc32_prepare() of crc32.h once.
 */
#ifndef TIDEMARK_RECORD_H
#define TIDEMARK_RECORD_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "bigendian.h"
#include "crc32.h"

enum {
    TIDEMARK_CHECK_BODY_CRC = 1,
    TIDEMARK_CHECK_RECORD_CRC = 2,
    TIDEMARK_CHECK_POSITION = 4,
    TIDEMARK_REQUIRE_RECORD_CRC = 8,
};

enum {
    TIDEMARK_NO_RECORD = 0,
    TIDEMARK_RECORD = 1,
    TIDEMARK_ASK = 2, /* a record if record_check.record_crc_fault finds no fault */
};

enum { TIDEMARK_RECORD_SIZE_MIN = 91, TIDEMARK_UNIT_SIZE = 20, TIDEMARK_CRC_SLOT_SIZE = 20 };

typedef struct {
    uint32_t size;
    int32_t sys_flag;
    int32_t queue_id;
    int64_t queue_offset;
    int64_t store_timestamp_ms;
    /* Offsets from the record's first byte, and sizes; the properties include the record CRC. */
    uint32_t body_at, body_size, topic_at, topic_size, properties_at, properties_size;
    int crc_slot; /* the last 20 bytes are a record CRC property that matches */
} tidemark_record;

/* A queue unit: physical offset, size of the record, tags code (section 4.1). */
static inline void tidemark_store_unit(uint8_t *data, int64_t at, uint32_t size, int64_t code) {
    tidemark_put_64(data, (uint64_t)at);
    tidemark_put_32(data + 8, size);
    tidemark_put_64(data + 12, (uint64_t)code);
}

/* Return the number of a record CRC property's ten digits, least significant first; all ones if
 * they are not digits or no pair end follows. Parsing the digits is faster than formatting the CRC
 * for a comparison: its chain of divisions could only start when the CRC is computed. */
static inline uint64_t tidemark_crc_slot_value(const uint8_t *slot) {
    const uint64_t zeros = 0x3030303030303030u, tops = 0x8080808080808080u;
    /* The lowest byte is the last of eight digits, which is the most significant one. */
    uint64_t low = tidemark_get_64(slot + 9) ^ zeros;
    const unsigned ninth = slot[17] ^ 0x30u, tenth = slot[18] ^ 0x30u;
    if (((low + 0x7676767676767676u) | low) & tops || ninth > 9 || tenth > 9 || slot[19] != 2)
        return ~(uint64_t)0;
    low = low * 2561 >> 8 & 0x00FF00FF00FF00FFu; /* two digits: 10 * 256 + 1 */
    low = low * 6553601 >> 16 & 0x0000FFFF0000FFFFu; /* four: 100 * 65536 + 1 */
    low = low * 42949672960001u >> 32; /* eight: 10000 * 2^32 + 1 */
    return low + ninth * (uint64_t)100000000 + tenth * (uint64_t)1000000000;
}

/* CRC of the first covered bytes of a record. body_crc: that of its body; 0 if it is not known. */
static inline uint32_t tidemark_record_crc(const uint8_t *data, const tidemark_record *found,
                                           uint32_t covered, uint32_t body_crc) {
    if (!body_crc || found->body_size < TIDEMARK_CRC_JOINED_MIN)
        return tidemark_crc32(0, data, covered);
    const uint32_t body_end = found->body_at + found->body_size;
    const uint32_t head = tidemark_crc32(0, data, found->body_at);
    return tidemark_crc32(tidemark_crc32_joined(head, body_crc, found->body_size), data + body_end,
                          covered - body_end);
}

static inline int tidemark_judge_record_crc(const uint8_t *data, tidemark_record *found, int checks,
                                            uint32_t body_crc) {
    static const uint8_t name[9] = {'_', '_', 'C', 'R', 'C', '3', '2', '#', 1};
    const int without = checks & TIDEMARK_REQUIRE_RECORD_CRC ? TIDEMARK_NO_RECORD : TIDEMARK_RECORD;
    if (found->properties_size < TIDEMARK_CRC_SLOT_SIZE) return without;
    const uint8_t *slot = data + (found->size - TIDEMARK_CRC_SLOT_SIZE);
    if (memcmp(slot, name, sizeof name) == 0) {
        const uint32_t covered = found->size - TIDEMARK_CRC_SLOT_SIZE;
        if ((tidemark_record_crc(data, found, covered, body_crc) & 0x7FFFFFFF) ==
            tidemark_crc_slot_value(slot)) {
            found->crc_slot = 1;
            return TIDEMARK_RECORD;
        }
        return TIDEMARK_ASK;
    }
    /* A damaged property must not count as absent: its digits and its end remain. */
    return tidemark_crc_slot_value(slot) == ~(uint64_t)0 ? without : TIDEMARK_ASK;
}

/* Check the record at data, of which room bytes are readable. at: its physical offset.
 * found is complete unless TIDEMARK_NO_RECORD is returned. */
static inline int tidemark_judge_record(const uint8_t *data, size_t room, int64_t at, int checks,
                                        tidemark_record *found) {
    if (room < TIDEMARK_RECORD_SIZE_MIN) return TIDEMARK_NO_RECORD;
    const uint32_t size = tidemark_get_32(data);
    if (size < TIDEMARK_RECORD_SIZE_MIN || size > 0x7FFFFFFF || size > room)
        return TIDEMARK_NO_RECORD;
    const uint32_t magic = tidemark_get_32(data + 4);
    uint32_t length_size; /* size of the field with the topic's length */
    if (magic == 0xDAA320A7u)
        length_size = 1;
    else if (magic == 0xDAA320ABu)
        length_size = 2;
    else
        return TIDEMARK_NO_RECORD;
    const int32_t sys_flag = (int32_t)tidemark_get_32(data + 36);
    /* Prefixes have 88, 100, 100 or 112 bytes: each of the two hosts has 8 or 20. */
    const uint32_t born_extra = sys_flag & 0x10 ? 12 : 0, store_extra = sys_flag & 0x20 ? 12 : 0;
    const uint32_t body_at = 88 + born_extra + store_extra;
    if (size < body_at + length_size + 2) return TIDEMARK_NO_RECORD;
    uint32_t left = size - body_at - length_size - 2; /* for body, topic and properties */
    const uint32_t body_size = tidemark_get_32(data + body_at - 4);
    if (body_size > left) return TIDEMARK_NO_RECORD; /* negative sizes are too large */
    left -= body_size;
    const uint8_t *length = data + body_at + body_size;
    const uint32_t topic_size = length_size == 1 ? length[0] : tidemark_get_16(length);
    if (topic_size > (length_size == 1 ? 127u : 32767u) || topic_size > left)
        return TIDEMARK_NO_RECORD;
    left -= topic_size;
    length += length_size + topic_size;
    if (tidemark_get_16(length) != left || left > 32767) return TIDEMARK_NO_RECORD;
    if (checks & TIDEMARK_CHECK_POSITION && (int64_t)tidemark_get_64(data + 28) != at)
        return TIDEMARK_NO_RECORD;
    uint32_t body_crc = 0;
    if (checks & TIDEMARK_CHECK_BODY_CRC && body_size) {
        body_crc = tidemark_crc32(0, data + body_at, body_size);
        if ((body_crc & 0x7FFFFFFF) != tidemark_get_32(data + 8)) return TIDEMARK_NO_RECORD;
    }
    found->size = size;
    found->sys_flag = sys_flag;
    found->queue_id = (int32_t)tidemark_get_32(data + 12);
    found->queue_offset = (int64_t)tidemark_get_64(data + 20);
    found->store_timestamp_ms = (int64_t)tidemark_get_64(data + 56 + born_extra);
    found->body_at = body_at;
    found->body_size = body_size;
    found->topic_at = body_at + body_size + length_size;
    found->topic_size = topic_size;
    found->properties_at = size - left;
    found->properties_size = left;
    found->crc_slot = 0;
    if (!(checks & (TIDEMARK_CHECK_RECORD_CRC | TIDEMARK_REQUIRE_RECORD_CRC)))
        return TIDEMARK_RECORD;
    return tidemark_judge_record_crc(data, found, checks, body_crc);
}

/* Load the fields of a later record into the cache. Its place is guessed: the records until there
 * are as long as this one. A wrong guess costs little. Without it a reader that follows the sizes
 * waits for memory twice per record: the place of the next one is known only when this one is
 * there, and the place of the topic only when the sizes are there. room: readable bytes at data.
 * Always inline: GCC removes calls of a function that only prefetches. */
static inline __attribute__((always_inline)) void tidemark_prefetch_record(
    const uint8_t *data, size_t room, const tidemark_record *found) {
    enum { RECORDS_AHEAD = 8, LINE_SIZE = 64 };
    const size_t start = RECORDS_AHEAD * (size_t)found->size, end = start + found->size;
    if (end > room) return;
    __builtin_prefetch(data + start);
    __builtin_prefetch(data + start + LINE_SIZE);
    for (size_t at = start + found->topic_at - 2; at < end; at += LINE_SIZE)
        __builtin_prefetch(data + at);
    __builtin_prefetch(data + end - 1);
}

/* A property's value in place. size is 0 if it is absent; an empty value counts as absent. */
typedef struct {
    const uint8_t *data;
    uint32_t size;
} tidemark_value;

typedef struct {
    tidemark_value tags, keys, unique_id, delay;
} tidemark_properties;

/* Find the properties that dispatch needs. As in properties.find, the last of equal names wins, an
 * empty value does not count, and a missing last 0x02 is accepted. */
static inline void tidemark_find_properties(const uint8_t *data, const tidemark_record *found,
                                            tidemark_properties *wanted) {
    const uint8_t *at = data + found->properties_at;
    const uint8_t *end = at + found->properties_size;
    memset(wanted, 0, sizeof *wanted);
    /* A record CRC that is a pair of its own is not needed; otherwise it ends some value. */
    if (found->crc_slot && (found->properties_size == TIDEMARK_CRC_SLOT_SIZE ||
                            end[-TIDEMARK_CRC_SLOT_SIZE - 1] == 2))
        end -= TIDEMARK_CRC_SLOT_SIZE;
    while (at < end) {
        const uint8_t *stop = memchr(at, 2, (size_t)(end - at));
        if (stop == NULL) stop = end;
        const uint32_t size = (uint32_t)(stop - at);
        tidemark_value *value = NULL;
        uint32_t name_size = 5;
        if (size > 5) {
            if (memcmp(at, "TAGS\1", 5) == 0)
                value = &wanted->tags;
            else if (memcmp(at, "KEYS\1", 5) == 0)
                value = &wanted->keys;
            else if (size > 9 && memcmp(at, "UNIQ_KEY\1", 9) == 0)
                value = &wanted->unique_id, name_size = 9;
            else if (size > 6 && memcmp(at, "DELAY\1", 6) == 0)
                value = &wanted->delay, name_size = 6;
        }
        if (value != NULL) {
            value->data = at + name_size;
            value->size = size - name_size;
        }
        at = stop + 1;
    }
}

/* Continue Java's string hash over ASCII bytes: hash * 31^size + ... *others collects the top bits
 * of the bytes: if 0x80 is set, some character was not ASCII, and the hash is not valid. */
static inline uint32_t tidemark_string_hash(uint32_t hash, const uint8_t *data, size_t size,
                                            uint8_t *others) {
    const uint32_t p2 = 961u, p3 = 29791u, p4 = 923521u, p5 = 28629151u, p6 = 887503681u,
                   p7 = 1742810335u /* 31^7 and 31^8 modulo 2^32 */, p8 = 2487512833u;
    uint8_t seen = 0;
    while (size >= 8) {
        /* Eight independent products, which the CPU computes in parallel. */
        seen |= data[0] | data[1] | data[2] | data[3] | data[4] | data[5] | data[6] | data[7];
        hash = hash * p8 + (data[0] * p7 + data[1] * p6 + data[2] * p5 + data[3] * p4) +
               (data[4] * p3 + data[5] * p2 + data[6] * 31u + data[7]);
        data += 8;
        size -= 8;
    }
    while (size--) {
        seen |= *data;
        hash = hash * 31u + *data++;
    }
    *others |= seen;
    return hash;
}

/* Return the value of a hash in the index: its absolute value; 0 for INT32_MIN (5.2). */
static inline int64_t tidemark_index_hash(uint32_t hash) {
    if (hash < 0x80000000u) return hash;
    return hash > 0x80000000u ? (int64_t)(uint32_t)(0u - hash) : 0;
}

/* Hash of the table of (topic, queue) pairs. seed is random per process. */
static inline uint64_t tidemark_table_hash(const uint8_t *data, size_t size, int32_t queue_id,
                                           uint64_t seed) {
    const uint64_t odd = 0x9E3779B97F4A7C15u; /* 2^64 divided by the golden ratio */
    uint64_t hash = (seed ^ (uint32_t)queue_id ^ (uint64_t)size << 32) * odd;
    while (size >= 8) {
        uint64_t word;
        memcpy(&word, data, 8);
        hash = (hash ^ hash >> 29 ^ word) * odd;
        data += 8;
        size -= 8;
    }
    uint64_t rest = 0;
    while (size--) rest = rest << 8 | *data++;
    hash = (hash ^ hash >> 29 ^ rest) * odd;
    return hash ^ hash >> 32;
}

#endif
