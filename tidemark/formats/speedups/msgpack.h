/* Reads and writes msgpack (github.com/msgpack/msgpack/blob/master/spec.md) in place.
 *
 * Readers advance a cursor that never passes its end: they read a complete value in any of its
 * encodings, or nothing. They do not recurse and skip nothing: callers know which type must follow.
 * Writers do not check the room: their callers have computed it.
 */
#ifndef TIDEMARK_MSGPACK_H
#define TIDEMARK_MSGPACK_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "bigendian.h"

typedef struct {
    const uint8_t *at;
    const uint8_t *end;
} tidemark_cursor;

typedef struct {
    const uint8_t *at;
    size_t size;
} tidemark_piece;

enum { TIDEMARK_NIL = 0xc0, TIDEMARK_FALSE = 0xc2, TIDEMARK_TRUE = 0xc3 };

static inline size_t tidemark_left(const tidemark_cursor *from) {
    return (size_t)(from->end - from->at);
}

/* Return the next byte, the type of a value; at the end 0xc1, which is never used as a type. */
static inline uint8_t tidemark_peek(const tidemark_cursor *from) {
    return from->at < from->end ? *from->at : 0xc1;
}

/* Read the number of a head of 1 + width bytes. */
static inline int tidemark_head(tidemark_cursor *from, size_t width, uint64_t *value) {
    if (tidemark_left(from) < 1 + width) return 0;
    switch (width) {
    case 1: *value = from->at[1]; break;
    case 2: *value = tidemark_get_16(from->at + 1); break;
    case 4: *value = tidemark_get_32(from->at + 1); break;
    default: *value = tidemark_get_64(from->at + 1); break;
    }
    from->at += 1 + width;
    return 1;
}

static inline int tidemark_bytes(tidemark_cursor *from, uint64_t size, tidemark_piece *piece) {
    if (size > tidemark_left(from)) return 0;
    piece->at = from->at;
    piece->size = (size_t)size;
    from->at += size;
    return 1;
}

static inline int tidemark_read_str(tidemark_cursor *from, tidemark_piece *text) {
    uint8_t first = tidemark_peek(from);
    uint64_t size;
    if ((first & 0xe0) == 0xa0) {
        from->at++;
        return tidemark_bytes(from, first & 0x1f, text);
    }
    if (first < 0xd9 || first > 0xdb) return 0;
    return tidemark_head(from, (size_t)1 << (first - 0xd9), &size) &&
           tidemark_bytes(from, size, text);
}

/* size of text is a constant, so that the comparison compiles to one of numbers. */
static inline int tidemark_is(const tidemark_piece *piece, const char *text, size_t size) {
    return piece->size == size && memcmp(piece->at, text, size) == 0;
}

static inline int tidemark_read_bin(tidemark_cursor *from, tidemark_piece *data) {
    uint8_t first = tidemark_peek(from);
    uint64_t size;
    if (first < 0xc4 || first > 0xc6) return 0;
    return tidemark_head(from, (size_t)1 << (first - 0xc4), &size) &&
           tidemark_bytes(from, size, data);
}

static inline int tidemark_read_array(tidemark_cursor *from, uint64_t *count) {
    uint8_t first = tidemark_peek(from);
    if ((first & 0xf0) == 0x90) {
        from->at++;
        *count = first & 0x0f;
        return 1;
    }
    if (first != 0xdc && first != 0xdd) return 0;
    return tidemark_head(from, first == 0xdc ? 2 : 4, count);
}

static inline int tidemark_read_map(tidemark_cursor *from, uint64_t *count) {
    uint8_t first = tidemark_peek(from);
    if ((first & 0xf0) == 0x80) {
        from->at++;
        *count = first & 0x0f;
        return 1;
    }
    if (first != 0xde && first != 0xdf) return 0;
    return tidemark_head(from, first == 0xde ? 2 : 4, count);
}

/* Read an integer that fits into an i64. */
static inline int tidemark_read_int(tidemark_cursor *from, int64_t *value) {
    uint8_t first = tidemark_peek(from);
    uint64_t raw;
    if (first <= 0x7f || first >= 0xe0) {
        from->at++;
        *value = (int8_t)first;
        return 1;
    }
    if (first >= 0xcc && first <= 0xcf) {
        if (!tidemark_head(from, (size_t)1 << (first - 0xcc), &raw) || raw > INT64_MAX) return 0;
        *value = (int64_t)raw;
        return 1;
    }
    if (first < 0xd0 || first > 0xd3) return 0;
    if (!tidemark_head(from, (size_t)1 << (first - 0xd0), &raw)) return 0;
    switch (first) {
    case 0xd0: *value = (int8_t)raw; break;
    case 0xd1: *value = (int16_t)raw; break;
    case 0xd2: *value = (int32_t)raw; break;
    default: *value = (int64_t)raw; break;
    }
    return 1;
}

static inline uint8_t *tidemark_write(uint8_t *to, const void *data, size_t size) {
    memcpy(to, data, size);
    return to + size;
}

static inline uint8_t *tidemark_write_head(
    uint8_t *to, uint8_t first, size_t width, uint64_t value) {
    *to = first;
    switch (width) {
    case 1: to[1] = (uint8_t)value; break;
    case 2: tidemark_put_16(to + 1, (uint16_t)value); break;
    case 4: tidemark_put_32(to + 1, (uint32_t)value); break;
    default: tidemark_put_64(to + 1, value); break;
    }
    return to + 1 + width;
}

/* Write the shortest encoding, at most 9 bytes. */
static inline uint8_t *tidemark_write_int(uint8_t *to, int64_t value) {
    uint64_t raw = (uint64_t)value;
    if (value >= 0) {
        if (value <= 0x7f) {
            *to = (uint8_t)value;
            return to + 1;
        }
        if (value <= 0xff) return tidemark_write_head(to, 0xcc, 1, raw);
        if (value <= 0xffff) return tidemark_write_head(to, 0xcd, 2, raw);
        if (value <= 0xffffffff) return tidemark_write_head(to, 0xce, 4, raw);
        return tidemark_write_head(to, 0xcf, 8, raw);
    }
    if (value >= -32) {
        *to = (uint8_t)value;
        return to + 1;
    }
    if (value >= INT8_MIN) return tidemark_write_head(to, 0xd0, 1, raw);
    if (value >= INT16_MIN) return tidemark_write_head(to, 0xd1, 2, raw);
    if (value >= INT32_MIN) return tidemark_write_head(to, 0xd2, 4, raw);
    return tidemark_write_head(to, 0xd3, 8, raw);
}

/* Write at most 5 bytes and the text. */
static inline uint8_t *tidemark_write_str(uint8_t *to, const uint8_t *text, size_t size) {
    if (size <= 31)
        *to++ = (uint8_t)(0xa0 | size);
    else if (size <= 0xff)
        to = tidemark_write_head(to, 0xd9, 1, size);
    else if (size <= 0xffff)
        to = tidemark_write_head(to, 0xda, 2, size);
    else
        to = tidemark_write_head(to, 0xdb, 4, size);
    return tidemark_write(to, text, size);
}

/* Write at most 5 bytes. */
static inline uint8_t *tidemark_write_array(uint8_t *to, size_t count) {
    if (count <= 15) {
        *to = (uint8_t)(0x90 | count);
        return to + 1;
    }
    if (count <= 0xffff) return tidemark_write_head(to, 0xdc, 2, count);
    return tidemark_write_head(to, 0xdd, 4, count);
}

#endif
