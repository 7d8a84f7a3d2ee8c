/* How MessagePack and JSON write a string, a list of strings, a time, a place. Nothing here knows how
 * much room there is: see `penstock_format_bound`. */
#ifndef PENSTOCK_WRITTEN_H
#define PENSTOCK_WRITTEN_H

#include "columns.h"

/* How a text is written. LINE is as it is, but a line break in it is refused. */
enum { PLAIN, LINE, MSGPACK, JSON };

static inline int digits_in(uint64_t n) {
    int count = 1;
    while (n >= 10) n /= 10, count++;
    return count;
}

static inline uint8_t *put_unsigned(uint8_t *out, uint64_t n) {
    uint8_t *end = out + digits_in(n), *at = end;
    do *--at = (uint8_t)('0' + n % 10);
    while (n /= 10);
    return end;
}

static inline uint8_t *put_integer(uint8_t *out, int64_t n) {
    if (n >= 0) return put_unsigned(out, (uint64_t)n);
    *out++ = '-';
    return put_unsigned(out, 0 - (uint64_t)n);
}

static inline uint8_t *put_fixed(uint8_t *out, int64_t n, int digits) {
    for (int i = digits; i--; n /= 10) out[i] = (uint8_t)('0' + n % 10);
    return out + digits;
}

static inline uint8_t *put_string_head(uint8_t *out, int64_t size) {
    if (size < 32) {
        *out++ = (uint8_t)(0xa0 | size);
        return out;
    }
    int bytes = size < 1 << 8 ? 1 : size < 1 << 16 ? 2 : 4;
    *out++ = bytes == 1 ? 0xd9 : bytes == 2 ? 0xda : 0xdb;
    while (bytes--) *out++ = (uint8_t)(size >> 8 * bytes);
    return out;
}

static inline uint8_t *put_escaped(uint8_t *out, const uint8_t *text, int64_t size) {
    static const char hex[] = "0123456789abcdef";
    const uint8_t *end = text + size;
    while (text < end) {
        const uint8_t *plain = text;
        while (text < end && *text >= 0x20 && *text != '"' && *text != '\\') text++;
        out = put(out, plain, text - plain);
        if (text == end) break;
        uint8_t c = *text++;
        *out++ = '\\';
        switch (c) {
        case '"': case '\\': *out++ = c; break;
        case '\b': *out++ = 'b'; break;
        case '\t': *out++ = 't'; break;
        case '\n': *out++ = 'n'; break;
        case '\f': *out++ = 'f'; break;
        case '\r': *out++ = 'r'; break;
        default:
            out = put(out, "u00", 3);
            *out++ = (uint8_t)hex[c >> 4];
            *out++ = (uint8_t)hex[c & 15];
        }
    }
    return out;
}

static inline int has_line_break(const uint8_t *text, int64_t size) {
    for (int64_t i = 0; i < size; i++)
        if (text[i] == '\r' || text[i] == '\n') return 1;
    return 0;
}

/* NULL: a line break where none may be. */
static inline uint8_t *put_text(uint8_t *out, const uint8_t *text, int64_t size, int form) {
    switch (form) {
    case LINE:
        if (has_line_break(text, size)) return NULL;
        break;
    case MSGPACK:
        out = put_string_head(out, size);
        break;
    case JSON:
        *out++ = '"';
        out = put_escaped(out, text, size);
        *out++ = '"';
        return out;
    }
    return put(out, text, size);
}

/* CURSOR:ORDINAL */
static inline uint8_t *put_place(uint8_t *out, const struct column *cursors,
                                 const struct column *ordinals, int64_t row, int form) {
    int64_t size, ordinal = integer(ordinals, row, 4);
    const uint8_t *cursor = value(cursors, row, &size);
    uint8_t number[40];
    int64_t digits = put_integer(number, ordinal) - number;
    if (form == MSGPACK)
        out = put_string_head(out, size + 1 + digits);
    else if (form == JSON)
        *out++ = '"';
    if (form == JSON)
        out = put_escaped(out, cursor, size);
    else if (!(out = put_text(out, cursor, size, form == LINE ? LINE : PLAIN)))
        return NULL;
    *out++ = ':';
    out = put(out, number, digits);
    if (form == JSON) *out++ = '"';
    return out;
}

/* 2026-11-21T10:02:03.000004Z from microseconds since 1970; NULL outside of the years 0 to 9999.
 * The calendar is Howard Hinnant's days_to_civil. */
static inline uint8_t *put_time(uint8_t *out, int64_t micros, int form) {
    int64_t days = micros / 86400000000, rest = micros % 86400000000;
    if (rest < 0) rest += 86400000000, days--;
    days += 719468;
    if (days < 60 || days > 719468 + 2932896) return NULL;
    int64_t era = days / 146097, of_era = days % 146097;
    int64_t years = (of_era - of_era / 1460 + of_era / 36524 - of_era / 146096) / 365;
    int64_t of_year = of_era - (365 * years + years / 4 - years / 100);
    int64_t shifted = (5 * of_year + 2) / 153;
    int64_t month = shifted < 10 ? shifted + 3 : shifted - 9;
    int64_t seconds = rest / 1000000;
    *out++ = form == JSON ? '"' : (uint8_t)(0xa0 | 27);
    out = put_fixed(out, years + era * 400 + (month <= 2), 4);
    *out++ = '-';
    out = put_fixed(out, month, 2);
    *out++ = '-';
    out = put_fixed(out, of_year - (153 * shifted + 2) / 5 + 1, 2);
    *out++ = 'T';
    out = put_fixed(out, seconds / 3600, 2);
    *out++ = ':';
    out = put_fixed(out, seconds / 60 % 60, 2);
    *out++ = ':';
    out = put_fixed(out, seconds % 60, 2);
    *out++ = '.';
    out = put_fixed(out, rest % 1000000, 6);
    *out++ = 'Z';
    if (form == JSON) *out++ = '"';
    return out;
}

/* Changes of one transaction have one time: the last one is kept, written. */
enum { TIMES = 32 };
struct written {
    int64_t micros, size;
    uint8_t text[32];
};

static inline uint8_t *put_known_time(uint8_t *out, int64_t micros, int form,
                                      struct written *last) {
    if (!last->size || last->micros != micros) {
        uint8_t *end = put_time(last->text, micros, form);
        if (!end) return NULL;
        last->micros = micros;
        last->size = end - last->text;
    }
    return put(out, last->text, last->size);
}

/* A list of texts as an array. */
static inline uint8_t *put_strings(uint8_t *out, const struct column *lists,
                                   const struct column *items, int64_t row, int form) {
    const int32_t *at = lists->offsets + lists->offset + row;
    int64_t count = at[1] - at[0], size;
    if (form == JSON)
        *out++ = '[';
    else if (count < 16)
        *out++ = (uint8_t)(0x90 | count);
    else {
        int bytes = count < 1 << 16 ? 2 : 4;
        *out++ = bytes == 2 ? 0xdc : 0xdd;
        while (bytes--) *out++ = (uint8_t)(count >> 8 * bytes);
    }
    for (int64_t i = at[0]; i < at[1]; i++) {
        if (form == JSON && i > at[0]) *out++ = ',';
        const uint8_t *text = value(items, i, &size);
        out = put_text(out, text, size, form);
    }
    if (form == JSON) *out++ = ']';
    return out;
}

#endif
