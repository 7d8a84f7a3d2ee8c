/* Is it UTF-8, as strictly as Python takes it: no surrogates, nothing overlong, nothing too high. */
#ifndef PENSTOCK_UTF8_H
#define PENSTOCK_UTF8_H

#include "cursor.h"

#define EVERY(byte) (0x0101010101010101ULL * (byte))

static inline uint64_t load64(const uint8_t *p) {
    uint64_t word;
    memcpy(&word, p, 8);
    return word;
}

/* How many bytes the character at `p` has; 0 if it is none. Not for ASCII. */
static inline int pk_character(const uint8_t *p, const uint8_t *end) {
    uint8_t first = p[0];
    uint8_t low = 0x80, high = 0xBF;
    int size = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
    if (first < 0xC2 || first > 0xF4 || end - p < size) return 0;
    if (first == 0xE0) low = 0xA0;
    if (first == 0xED) high = 0x9F;
    if (first == 0xF0) low = 0x90;
    if (first == 0xF4) high = 0x8F;
    if (p[1] < low || p[1] > high) return 0;
    for (int i = 2; i < size; i++)
        if ((p[i] & 0xC0) != 0x80) return 0;
    return size;
}

static inline int is_utf8(struct text text) {
    const uint8_t *p = text.at, *end = text.at + text.size;
    while (p < end) {
        int size;
        while (end - p >= 8 && !(load64(p) & EVERY(0x80))) p += 8;
        while (p < end && *p < 0x80) p++;
        if (p == end) break;
        size = pk_character(p, end);
        if (!size) return 0;
        p += size;
    }
    return 1;
}

#endif
