/* Classifies the bytes of a text, eight at a time. */
#ifndef TIDEMARK_TEXT_H
#define TIDEMARK_TEXT_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum {
    TIDEMARK_HAS_LOW = 1,   /* a byte of 0, 1 or 2 */
    TIDEMARK_HAS_SPACE = 2, /* U+0020 */
    TIDEMARK_HAS_HIGH = 4,  /* a byte of 0x80 or more: not ASCII */
};

/* Return which classes of bytes the word contains. Each test is exact for the whole word: Anderson,
 * "Bit Twiddling Hacks", "Determine if a word has a byte less than n", "… a zero byte". */
static inline int tidemark_word_has(uint64_t word) {
    const uint64_t ones = 0x0101010101010101u, highs = 0x8080808080808080u;
    uint64_t spaces = word ^ (ones * 0x20);
    int has = 0;
    if ((word - ones * 3) & ~word & highs) has |= TIDEMARK_HAS_LOW;
    if ((spaces - ones) & ~spaces & highs) has |= TIDEMARK_HAS_SPACE;
    if (word & highs) has |= TIDEMARK_HAS_HIGH;
    return has;
}

static inline int tidemark_text_has(const uint8_t *text, size_t size) {
    int has = 0;
    uint64_t word;
    if (size >= 8) {
        for (size_t at = 0; at <= size - 8; at += 8) {
            memcpy(&word, text + at, 8);
            has |= tidemark_word_has(word);
        }
        memcpy(&word, text + size - 8, 8);
        return has | tidemark_word_has(word);
    }
    for (size_t at = 0; at < size; at++) {
        if (text[at] < 3) has |= TIDEMARK_HAS_LOW;
        if (text[at] == 0x20) has |= TIDEMARK_HAS_SPACE;
        if (text[at] > 0x7f) has |= TIDEMARK_HAS_HIGH;
    }
    return has;
}

/* Return whether the bytes are UTF-8: no surrogates, no overlong forms, at most U+10FFFF (Unicode
 * 15, table 3-7). characters receives the number of characters. */
static inline int tidemark_is_utf8(const uint8_t *text, size_t size, size_t *characters) {
    size_t at = 0, count = 0;
    while (at < size) {
        uint8_t first = text[at], low = 0x80, high = 0xbf;
        size_t more;
        if (first < 0x80) {
            more = 0;
        } else if (first < 0xc2 || first > 0xf4) {
            return 0;
        } else if (first < 0xe0) {
            more = 1;
        } else if (first < 0xf0) {
            more = 2;
            if (first == 0xe0) low = 0xa0;
            if (first == 0xed) high = 0x9f;
        } else {
            more = 3;
            if (first == 0xf0) low = 0x90;
            if (first == 0xf4) high = 0x8f;
        }
        if (more > size - at - 1) return 0;
        for (size_t next = 1; next <= more; next++) {
            uint8_t byte = text[at + next];
            if (byte < low || byte > high) return 0;
            low = 0x80;
            high = 0xbf;
        }
        at += 1 + more;
        count++;
    }
    *characters = count;
    return 1;
}

#endif
