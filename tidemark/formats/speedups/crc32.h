/* CRC-32 as in zlib (reflected 0xEDB88320), several times faster on CPUs with PCLMULQDQ.
 *
 * tidemark_crc32(crc, data, size) continues crc, which is 0 at first, like zlib.crc32(data, crc).
 * It folds by carry-less multiplication: Gopal et al., "Fast CRC Computation for Generic
 * Polynomials Using PCLMULQDQ Instruction" (Intel, 2009), with that paper's constants for this
 * polynomial. Other CPUs, and data below 16 bytes, use eight table look-ups per eight bytes. Both
 * are tested against zlib.
 *
 * tidemark_crc32_joined(first, second, size) is the CRC of two adjacent parts from their own CRCs;
 * size is that of the second part. So a large body is read once for two CRCs. It is the algorithm
 * of zlib's crc32_combine, and takes half a microsecond.
 */
#ifndef TIDEMARK_CRC32_H
#define TIDEMARK_CRC32_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

static uint32_t tidemark_crc_table[8][256];
static uint32_t tidemark_crc_powers[32]; /* x to the power of 2^n, modulo the polynomial */
static int tidemark_crc_folds;

enum { TIDEMARK_CRC_JOINED_MIN = 32 * 1024 }; /* bytes that take longer to read than to join */

/* Multiply two polynomials modulo that of the CRC; bit 31 is the coefficient of x^0. */
static inline uint32_t tidemark_crc_product(uint32_t a, uint32_t b) {
    uint32_t product = 0;
    for (; a; a <<= 1) {
        if (a & 0x80000000u) product ^= b;
        b = b & 1 ? 0xEDB88320u ^ b >> 1 : b >> 1;
    }
    return product;
}

static inline uint32_t tidemark_crc32_joined(uint32_t first, uint32_t second, size_t size) {
    uint32_t shift = 0x80000000u; /* x^0; becomes x^(8 * size) */
    for (int power = 3; size; size >>= 1, power++)
        if (size & 1) shift = tidemark_crc_product(tidemark_crc_powers[power & 31], shift);
    return tidemark_crc_product(shift, first) ^ second;
}

static inline uint32_t tidemark_crc_tables(uint32_t crc, const uint8_t *data, size_t size) {
    const uint32_t(*table)[256] = (const uint32_t(*)[256])tidemark_crc_table;
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    while (size >= 8) {
        uint32_t low, high;
        memcpy(&low, data, 4);
        memcpy(&high, data + 4, 4);
        low ^= crc;
        crc = table[7][low & 255] ^ table[6][low >> 8 & 255] ^ table[5][low >> 16 & 255] ^
              table[4][low >> 24] ^ table[3][high & 255] ^ table[2][high >> 8 & 255] ^
              table[1][high >> 16 & 255] ^ table[0][high >> 24];
        data += 8;
        size -= 8;
    }
#endif
    while (size--) crc = table[0][(crc ^ *data++) & 255] ^ crc >> 8;
    return crc;
}

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>

/* Masks of _mm_shuffle_epi8: the 16 bytes at n move the first n bytes to the end, the 16 bytes at
 * 16 + n move the other bytes to the beginning. The rest is filled with zeros. */
static const uint8_t tidemark_crc_moves[48] = {
    0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80,
    0,    1,    2,    3,    4,    5,    6,    7,    8,    9,    10,   11,   12,   13,   14,   15,
    0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80,
};

#define TIDEMARK_CRC_LOAD(at) _mm_loadu_si128((const __m128i *)(at))
#define TIDEMARK_CRC_FOLD(x, k, next)                                                          \
    _mm_xor_si128(                                                                             \
        _mm_xor_si128(_mm_clmulepi64_si128(x, k, 0x11), _mm_clmulepi64_si128(x, k, 0x00)), next)

/* size is at least 16. */
__attribute__((target("pclmul,sse4.1"))) static uint32_t
tidemark_crc_fold(uint32_t crc, const uint8_t *data, size_t size) {
    const __m128i by_64 = _mm_set_epi64x(0x1c6e41596, 0x154442bd4);
    const __m128i by_16 = _mm_set_epi64x(0x0ccaa009e, 0x1751997d0);
    const __m128i low_32 = _mm_setr_epi32(-1, 0, -1, 0);
    __m128i a = _mm_xor_si128(TIDEMARK_CRC_LOAD(data), _mm_cvtsi32_si128((int)crc));
    __m128i b;
    if (size >= 64) {
        __m128i c, d;
        b = TIDEMARK_CRC_LOAD(data + 16);
        c = TIDEMARK_CRC_LOAD(data + 32);
        d = TIDEMARK_CRC_LOAD(data + 48);
        data += 64;
        size -= 64;
        while (size >= 64) {
            a = TIDEMARK_CRC_FOLD(a, by_64, TIDEMARK_CRC_LOAD(data));
            b = TIDEMARK_CRC_FOLD(b, by_64, TIDEMARK_CRC_LOAD(data + 16));
            c = TIDEMARK_CRC_FOLD(c, by_64, TIDEMARK_CRC_LOAD(data + 32));
            d = TIDEMARK_CRC_FOLD(d, by_64, TIDEMARK_CRC_LOAD(data + 48));
            data += 64;
            size -= 64;
        }
        a = TIDEMARK_CRC_FOLD(a, by_16, b);
        a = TIDEMARK_CRC_FOLD(a, by_16, c);
        a = TIDEMARK_CRC_FOLD(a, by_16, d);
    } else {
        data += 16;
        size -= 16;
    }
    while (size >= 16) {
        a = TIDEMARK_CRC_FOLD(a, by_16, TIDEMARK_CRC_LOAD(data));
        data += 16;
        size -= 16;
    }
    if (size) {
        /* The folded value and the last bytes are 16 + size bytes. The first size bytes of them are
         * folded into the other 16; the load of the end overlaps bytes already processed. */
        const __m128i up = TIDEMARK_CRC_LOAD(tidemark_crc_moves + size);
        const __m128i down = TIDEMARK_CRC_LOAD(tidemark_crc_moves + 16 + size);
        b = _mm_blendv_epi8(TIDEMARK_CRC_LOAD(data + size - 16), _mm_shuffle_epi8(a, down), up);
        a = TIDEMARK_CRC_FOLD(_mm_shuffle_epi8(a, up), by_16, b);
    }
    /* Reduce 128 bits to 64, then to 32 by Barrett reduction. */
    b = _mm_clmulepi64_si128(a, by_16, 0x10);
    a = _mm_xor_si128(_mm_srli_si128(a, 8), b);
    b = _mm_srli_si128(a, 4);
    a = _mm_and_si128(a, low_32);
    a = _mm_xor_si128(_mm_clmulepi64_si128(a, _mm_set_epi64x(0, 0x163cd6124), 0x00), b);
    const __m128i barrett = _mm_set_epi64x(0x1f7011641, 0x1db710641);
    b = _mm_and_si128(a, low_32);
    b = _mm_and_si128(_mm_clmulepi64_si128(b, barrett, 0x10), low_32);
    b = _mm_clmulepi64_si128(b, barrett, 0x00);
    return (uint32_t)_mm_extract_epi32(_mm_xor_si128(a, b), 1);
}
#undef TIDEMARK_CRC_LOAD
#undef TIDEMARK_CRC_FOLD
#endif

/* Call it once per module, before the first CRC. */
static void tidemark_crc32_prepare(void) {
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t crc = byte;
        for (int bit = 0; bit < 8; bit++) crc = crc & 1 ? 0xEDB88320u ^ crc >> 1 : crc >> 1;
        tidemark_crc_table[0][byte] = crc;
    }
    for (int row = 1; row < 8; row++)
        for (int byte = 0; byte < 256; byte++) {
            uint32_t before = tidemark_crc_table[row - 1][byte];
            tidemark_crc_table[row][byte] = tidemark_crc_table[0][before & 255] ^ before >> 8;
        }
    tidemark_crc_powers[0] = 0x40000000u;
    for (int n = 1; n < 32; n++)
        tidemark_crc_powers[n] =
            tidemark_crc_product(tidemark_crc_powers[n - 1], tidemark_crc_powers[n - 1]);
#if defined(__x86_64__) && defined(__GNUC__)
    __builtin_cpu_init();
    tidemark_crc_folds =
        __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.1");
#endif
}

static inline uint32_t tidemark_crc32(uint32_t crc, const uint8_t *data, size_t size) {
#if defined(__x86_64__) && defined(__GNUC__)
    if (size >= 16 && tidemark_crc_folds)
        return ~tidemark_crc_fold(~crc, data, size);
#endif
    return ~tidemark_crc_tables(~crc, data, size);
}

#endif
