/* Reads wire entries of a batch (docs/formats.md, 2.12): one complete entry or none. */
#ifndef TIDEMARK_ENTRY_H
#define TIDEMARK_ENTRY_H

#include <stddef.h>
#include <stdint.h>

#include "bigendian.h"

enum {
    TIDEMARK_ENTRY_FLAG_AT = 12,
    TIDEMARK_ENTRY_BODY_SIZE_AT = 16,
    TIDEMARK_ENTRY_HEAD = 20, /* up to the body */
    TIDEMARK_ENTRY_OVERHEAD = 22,
};

typedef struct {
    const uint8_t *body;
    const uint8_t *properties;
    size_t body_size;
    size_t properties_size;
    const uint8_t *end;
} tidemark_entry;

/* Read the entry at `at`, of which `room` bytes exist; return 0 if it exceeds them. */
static inline int tidemark_read_entry(const uint8_t *at, size_t room, tidemark_entry *entry) {
    int32_t body_size;
    int16_t properties_size;
    if (room < TIDEMARK_ENTRY_OVERHEAD) return 0;
    body_size = (int32_t)tidemark_get_32(at + TIDEMARK_ENTRY_BODY_SIZE_AT);
    if (body_size < 0 || (size_t)body_size > room - TIDEMARK_ENTRY_OVERHEAD) return 0;
    room -= TIDEMARK_ENTRY_OVERHEAD + (size_t)body_size;
    entry->body = at + TIDEMARK_ENTRY_HEAD;
    entry->body_size = (size_t)body_size;
    properties_size = (int16_t)tidemark_get_16(entry->body + body_size);
    if (properties_size < 0 || (size_t)properties_size > room) return 0;
    entry->properties = entry->body + body_size + 2;
    entry->properties_size = (size_t)properties_size;
    entry->end = entry->properties + properties_size;
    return 1;
}

#endif
