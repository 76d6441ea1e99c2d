/* Big-endian fields at any address. The caller checks that they lie inside its buffer. */
#ifndef TIDEMARK_BIGENDIAN_H
#define TIDEMARK_BIGENDIAN_H

#include <stdint.h>
#include <string.h>

#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#define TIDEMARK_SWAP_16(x) __builtin_bswap16(x)
#define TIDEMARK_SWAP_32(x) __builtin_bswap32(x)
#define TIDEMARK_SWAP_64(x) __builtin_bswap64(x)
#else
#define TIDEMARK_SWAP_16(x) (x)
#define TIDEMARK_SWAP_32(x) (x)
#define TIDEMARK_SWAP_64(x) (x)
#endif

static inline uint16_t tidemark_get_16(const uint8_t *at) {
    uint16_t value;
    memcpy(&value, at, 2);
    return TIDEMARK_SWAP_16(value);
}

static inline uint32_t tidemark_get_32(const uint8_t *at) {
    uint32_t value;
    memcpy(&value, at, 4);
    return TIDEMARK_SWAP_32(value);
}

static inline uint64_t tidemark_get_64(const uint8_t *at) {
    uint64_t value;
    memcpy(&value, at, 8);
    return TIDEMARK_SWAP_64(value);
}

static inline void tidemark_put_16(uint8_t *at, uint16_t value) {
    value = TIDEMARK_SWAP_16(value);
    memcpy(at, &value, 2);
}

static inline void tidemark_put_32(uint8_t *at, uint32_t value) {
    value = TIDEMARK_SWAP_32(value);
    memcpy(at, &value, 4);
}

static inline void tidemark_put_64(uint8_t *at, uint64_t value) {
    value = TIDEMARK_SWAP_64(value);
    memcpy(at, &value, 8);
}

#endif
