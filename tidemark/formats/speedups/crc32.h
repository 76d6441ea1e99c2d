/* CRC-32 as zlib computes it (reflected 0xEDB88320), several times faster on CPUs that can fold.
 *
 * tidemark_crc32(crc, data, size) continues crc, 0 at first, like zlib.crc32(data, crc). Folding by
 * carry-less multiplication: Gopal et al., "Fast CRC Computation for Generic Polynomials Using
 * PCLMULQDQ Instruction" (Intel, 2009); its constants for this polynomial. Elsewhere, and for short
 * pieces, eight table look-ups per eight bytes. Both are tested against zlib.
 */
#ifndef TIDEMARK_CRC32_H
#define TIDEMARK_CRC32_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

static uint32_t tidemark_crc_table[8][256];
static int tidemark_crc_folds;

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

/* size: a multiple of 16, at least 64. */
__attribute__((target("pclmul,sse4.1"))) static uint32_t
tidemark_crc_fold(uint32_t crc, const uint8_t *data, size_t size) {
    const __m128i by_64 = _mm_set_epi64x(0x1c6e41596, 0x154442bd4);
    const __m128i by_16 = _mm_set_epi64x(0x0ccaa009e, 0x1751997d0);
    const __m128i low_32 = _mm_setr_epi32(-1, 0, -1, 0);
    __m128i a = _mm_loadu_si128((const __m128i *)data);
    __m128i b = _mm_loadu_si128((const __m128i *)(data + 16));
    __m128i c = _mm_loadu_si128((const __m128i *)(data + 32));
    __m128i d = _mm_loadu_si128((const __m128i *)(data + 48));
    __m128i t;
    a = _mm_xor_si128(a, _mm_cvtsi32_si128((int)crc));
    data += 64;
    size -= 64;
#define TIDEMARK_FOLD(x, k, next)                                                              \
    (t = _mm_clmulepi64_si128(x, k, 0x00),                                                     \
     x = _mm_xor_si128(_mm_xor_si128(_mm_clmulepi64_si128(x, k, 0x11), t), next))
    while (size >= 64) {
        TIDEMARK_FOLD(a, by_64, _mm_loadu_si128((const __m128i *)data));
        TIDEMARK_FOLD(b, by_64, _mm_loadu_si128((const __m128i *)(data + 16)));
        TIDEMARK_FOLD(c, by_64, _mm_loadu_si128((const __m128i *)(data + 32)));
        TIDEMARK_FOLD(d, by_64, _mm_loadu_si128((const __m128i *)(data + 48)));
        data += 64;
        size -= 64;
    }
    TIDEMARK_FOLD(a, by_16, b);
    TIDEMARK_FOLD(a, by_16, c);
    TIDEMARK_FOLD(a, by_16, d);
    while (size >= 16) {
        TIDEMARK_FOLD(a, by_16, _mm_loadu_si128((const __m128i *)data));
        data += 16;
        size -= 16;
    }
#undef TIDEMARK_FOLD
    /* 128 bits to 64, to 32: the last by Barrett reduction. */
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
#endif

/* Once per module, before the first call. */
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
#if defined(__x86_64__) && defined(__GNUC__)
    __builtin_cpu_init();
    tidemark_crc_folds =
        __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.1");
#endif
}

static inline uint32_t tidemark_crc32(uint32_t crc, const uint8_t *data, size_t size) {
    crc = ~crc;
#if defined(__x86_64__) && defined(__GNUC__)
    if (size >= 64 && tidemark_crc_folds) {
        size_t folded = size & ~(size_t)15;
        crc = tidemark_crc_fold(crc, data, folded);
        data += folded;
        size -= folded;
    }
#endif
    return ~tidemark_crc_tables(crc, data, size);
}

#endif
