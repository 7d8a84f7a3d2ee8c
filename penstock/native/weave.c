/* Weaves columns into rows of bytes: constants, values, lengths and numbers, one behind the other.
 *
 * Knows how MessagePack and JSON write a string, a list of strings, a time;
 * what a message looks like is the caller's list of pieces. Nothing here allocates what the caller
 * has to free, and nothing writes behind `penstock_weave_bound`.
 */

#include "weave.h"

struct piece {
    int32_t kind, a, b, form;
    const uint8_t *data;
    int64_t size;
};

enum { CONST, RAW, TEXT, PICK, TIME, PLACE, STRINGS, SIZE, COUNT, EDGE, BEHIND };
/* How a text is written. LINE is as it is, but a line break in it is refused. */
enum { PLAIN, LINE, MSGPACK, JSON };

#define UNKNOWN INT64_MIN /* the caller has to do it in its other way */

EXPORT int64_t penstock_weave_bound(const struct piece *pieces, int32_t count,
                                    const struct column *columns, int64_t rows);
EXPORT int64_t penstock_weave(const struct piece *pieces, int32_t count,
                              const struct column *columns, int64_t rows, int64_t first,
                              uint8_t *out, int32_t *ends);

static int digits_in(uint64_t n) {
    int count = 1;
    while (n >= 10) n /= 10, count++;
    return count;
}

static uint8_t *put_unsigned(uint8_t *out, uint64_t n) {
    uint8_t *end = out + digits_in(n), *at = end;
    do *--at = (uint8_t)('0' + n % 10);
    while (n /= 10);
    return end;
}

static uint8_t *put_integer(uint8_t *out, int64_t n) {
    if (n >= 0) return put_unsigned(out, (uint64_t)n);
    *out++ = '-';
    return put_unsigned(out, 0 - (uint64_t)n);
}

static uint8_t *put_fixed(uint8_t *out, int64_t n, int digits) {
    for (int i = digits; i--; n /= 10) out[i] = (uint8_t)('0' + n % 10);
    return out + digits;
}

static uint8_t *put_string_head(uint8_t *out, int64_t size) {
    if (size < 32) {
        *out++ = (uint8_t)(0xa0 | size);
        return out;
    }
    int bytes = size < 1 << 8 ? 1 : size < 1 << 16 ? 2 : 4;
    *out++ = bytes == 1 ? 0xd9 : bytes == 2 ? 0xda : 0xdb;
    while (bytes--) *out++ = (uint8_t)(size >> 8 * bytes);
    return out;
}

static uint8_t *put_escaped(uint8_t *out, const uint8_t *text, int64_t size) {
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

static int has_line_break(const uint8_t *text, int64_t size) {
    for (int64_t i = 0; i < size; i++)
        if (text[i] == '\r' || text[i] == '\n') return 1;
    return 0;
}

/* NULL: a line break where none may be. */
static uint8_t *put_text(uint8_t *out, const uint8_t *text, int64_t size, int form) {
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
static uint8_t *put_place(uint8_t *out, const struct column *cursors,
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
static uint8_t *put_time(uint8_t *out, int64_t micros, int form) {
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

static uint8_t *put_known_time(uint8_t *out, int64_t micros, int form, struct written *last) {
    if (!last->size || last->micros != micros) {
        uint8_t *end = put_time(last->text, micros, form);
        if (!end) return NULL;
        last->micros = micros;
        last->size = end - last->text;
    }
    return put(out, last->text, last->size);
}

/* A list of texts as an array. */
static uint8_t *put_strings(uint8_t *out, const struct column *lists, const struct column *items,
                            int64_t row, int form) {
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

/* Of the four values of an EDGE, from `form` on: in the middle, the first, the last, the only. */
static const uint8_t *edge(const struct piece *p, const struct column *c, int64_t row,
                           int64_t rows, int64_t *size) {
    return value(c, p->form + (row == 0) + 2 * (row == rows - 1), size);
}

static const uint8_t *behind(const struct piece *p, const struct column *columns, int64_t row,
                             int64_t *size) {
    return row ? value(columns + p->a, row - 1, size) : value(columns + p->b, p->form, size);
}

/* Bytes of one piece in one row; -1 where only writing tells. */
static int64_t measured(const struct piece *p, const struct column *columns, int64_t row,
                        int64_t rows, int64_t number) {
    const struct column *c = columns + p->a;
    int64_t size;
    switch (p->kind) {
    case CONST: return p->size;
    case COUNT: return digits_in((uint64_t)number);
    case RAW:
        if (p->form != PLAIN) return -1;
        if (is_null(c, row)) return p->size;
        value(c, row, &size);
        return size;
    case PICK:
        value(columns + p->b, integer(c, row, 4), &size);
        return size;
    case EDGE:
        edge(p, c, row, rows, &size);
        return size;
    case BEHIND:
        behind(p, columns, row, &size);
        return size;
    }
    return -1;
}

static int64_t span(const struct column *c, int64_t rows) {
    return c->offsets[c->offset + rows] - c->offsets[c->offset];
}

/* Most bytes that a text column's bytes can become, without what stands around each value. */
static int64_t grown(int64_t size, int form) { return form == JSON ? 6 * size : size; }

int64_t penstock_weave_bound(const struct piece *pieces, int32_t count,
                             const struct column *columns, int64_t rows) {
    int64_t total = 0, size, most;
    for (const struct piece *p = pieces; p < pieces + count; p++) {
        const struct column *c = columns + p->a, *d = columns + p->b;
        switch (p->kind) {
        case CONST: total += rows * p->size; break;
        case RAW: total += span(c, rows) + rows * p->size; break;
        case TEXT: total += grown(span(c, rows), p->form) + rows * (5 + p->size); break;
        case PLACE: total += grown(span(c, rows), p->form) + rows * 32; break;
        case PICK:
            most = 0;
            for (int64_t i = 0; i < d->length; i++) {
                value(d, i, &size);
                if (size > most) most = size;
            }
            total += rows * most;
            break;
        case EDGE:
            value(c, p->form, &size);
            total += rows * size + span(c, c->length);
            break;
        case BEHIND: total += span(c, rows) + span(d, d->length); break;
        case STRINGS: {
            int64_t items = span(c, rows);
            const int32_t *ends = d->offsets + d->offset, first = c->offsets[c->offset];
            if (items) total += grown(ends[first + items] - ends[first], p->form);
            total += items * 6 + rows * (5 + p->size);
            break;
        }
        default: total += rows * (32 + p->size);
        }
    }
    return total;
}

/* Writes rows `start` to before `start + rows` to `out`; `ends[0]` is where the first begins and
 * `ends[i + 1]` where row i ends. COUNT is `first` in the first row. Returns the bytes written;
 * -1 - row when that row has a line break where none may be; UNKNOWN. */
int64_t penstock_weave(const struct piece *pieces, int32_t count, const struct column *columns,
                       int64_t rows, int64_t first, uint8_t *out, int32_t *ends) {
    uint8_t *at = out;
    int64_t size;
    struct written times[TIMES] = {{0, 0, {0}}};
    ends[0] = 0;
    for (int64_t row = 0; row < rows; row++) {
        for (const struct piece *p = pieces; p < pieces + count; p++) {
            const struct column *c = columns + p->a, *d = columns + p->b;
            switch (p->kind) {
            case CONST:
                at = put(at, p->data, p->size);
                continue;
            case COUNT:
                at = put_unsigned(at, (uint64_t)(first + row));
                continue;
            case SIZE: {
                int64_t total = 0;
                for (const struct piece *q = pieces + p->a; q < pieces + p->b; q++) {
                    if ((size = measured(q, columns, row, rows, first + row)) < 0) return UNKNOWN;
                    total += size;
                }
                at = put_unsigned(at, (uint64_t)total);
                continue;
            }
            case PICK: {
                const uint8_t *text = value(d, integer(c, row, 4), &size);
                at = put(at, text, size);
                continue;
            }
            case EDGE: {
                const uint8_t *text = edge(p, c, row, rows, &size);
                at = put(at, text, size);
                continue;
            }
            case BEHIND: {
                const uint8_t *text = behind(p, columns, row, &size);
                at = put(at, text, size);
                continue;
            }
            }
            if (is_null(c, row)) {
                at = put(at, p->data, p->size);
                continue;
            }
            uint8_t *next = NULL;
            switch (p->kind) {
            case RAW:
            case TEXT: {
                const uint8_t *text = value(c, row, &size);
                next = put_text(at, text, size, p->form);
                break;
            }
            case PLACE: next = put_place(at, c, d, row, p->form); break;
            case STRINGS: next = put_strings(at, c, d, row, p->form); break;
            case TIME:
                next = put_known_time(at, integer(c, row, 8), p->form,
                                      times + ((p - pieces) & (TIMES - 1)));
                if (!next) return UNKNOWN;
                break;
            default: return UNKNOWN;
            }
            if (!next) return -1 - row;
            at = next;
        }
        ends[row + 1] = (int32_t)(at - out);
    }
    return at - out;
}
