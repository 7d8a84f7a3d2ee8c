/* Text into JSON strings, as orjson writes them, and into cells of COPY, as PostgreSQL does: only what
 * must be escaped is. */
#include "json.h"
#include "utf8.h"
#include "values.h"

static const char HEX[] = "0123456789abcdef";

/* Is any of 8 bytes a control character, a quote or a backslash? (It may be yes for one after
 * such a byte as well: bytes are then looked at one by one.) */
static inline uint64_t special(uint64_t word) {
    uint64_t quote = word ^ EVERY('"'), slash = word ^ EVERY('\\');
    uint64_t found = ((word - EVERY(0x20)) & ~word) | ((quote - EVERY(1)) & ~quote) |
                     ((slash - EVERY(1)) & ~slash);
    return found & EVERY(0x80);
}

static uint8_t *escape(uint8_t *at, uint8_t byte) {
    static const char shorts[] = "btn?fr";
    *at++ = '\\';
    if (byte == '"' || byte == '\\') return *at = byte, at + 1;
    if (byte >= 8 && byte <= 13 && byte != 11) return *at = (uint8_t)shorts[byte - 8], at + 1;
    memcpy(at, "u00", 3);
    at[3] = (uint8_t)HEX[byte >> 4];
    at[4] = (uint8_t)HEX[byte & 15];
    return at + 5;
}

int pk_json_string(struct text text, struct buffer *out) {
    const uint8_t *p = text.at, *end = text.at + text.size;
    uint8_t *at = room(out, text.size + 16);
    if (!is_utf8(text)) return STRANGE;
    if (!at) return FULL;
    *at++ = '"';
    for (;;) {
        while (end - p >= 8) {
            uint64_t word = load64(p);
            if (special(word)) break;
            memcpy(at, &word, 8);
            at += 8, p += 8;
        }
        if (p == end) break;
        if (*p >= 0x20 && *p != '"' && *p != '\\') {
            *at++ = *p++;
            continue;
        }
        wrote(out, at);
        /* Room for the longest escape, the rest, and the quote. */
        at = room(out, 6 + (end - p) + 16);
        if (!at) return FULL;
        at = escape(at, *p++);
    }
    *at++ = '"';
    wrote(out, at);
    return FINE;
}

int pk_json_base64(struct text bytes, struct buffer *out) {
    static const char letters[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const uint8_t *p = bytes.at;
    int64_t size = bytes.size;
    uint8_t *at = room(out, size / 3 * 4 + 8);
    if (!at) return FULL;
    *at++ = '"';
    for (; size > 0; size -= 3, p += 3) {
        uint32_t three = (uint32_t)p[0] << 16;
        if (size > 1) three |= (uint32_t)p[1] << 8;
        if (size > 2) three |= p[2];
        *at++ = (uint8_t)letters[three >> 18];
        *at++ = (uint8_t)letters[three >> 12 & 63];
        *at++ = size > 1 ? (uint8_t)letters[three >> 6 & 63] : '=';
        *at++ = size > 2 ? (uint8_t)letters[three & 63] : '=';
    }
    *at++ = '"';
    wrote(out, at);
    return FINE;
}

/* As above, for a backslash, what is below 0x0E, and what is not ASCII. */
static inline uint64_t special_in_copy(uint64_t word) {
    uint64_t slash = word ^ EVERY('\\');
    return ((word - EVERY(0x0E)) | word | ((slash - EVERY(1)) & ~slash)) & EVERY(0x80);
}

int pk_cell(struct text raw, struct buffer *out) {
    static const char letters[] = "btnvfr"; /* of 8 to 13 */
    const uint8_t *p = raw.at, *end = raw.at + raw.size;
    uint8_t *at = room(out, 2 * raw.size + 1);
    if (!at) return FULL;
    while (p < end) {
        uint64_t word;
        int is_control, size;
        if (end - p >= 8 && !special_in_copy(word = load64(p))) {
            memcpy(at, &word, 8);
            at += 8, p += 8;
            continue;
        }
        if (*p >= 0x80) {
            if (!(size = pk_character(p, end))) return STRANGE;
            memcpy(at, p, (size_t)size);
            at += size, p += size;
            continue;
        }
        is_control = *p >= 8 && *p <= 13;
        if (is_control || *p == '\\') *at++ = '\\';
        *at++ = is_control ? (uint8_t)letters[*p - 8] : *p;
        p++;
    }
    wrote(out, at);
    return FINE;
}
