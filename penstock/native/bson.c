/* BSON values as JSON or MessagePack: what penstock/wire/changestream/values.py makes of them. */
#include "bson.h"
#include "json.h"
#include "messagepack.h"
#include "native.h"
#include "number.h"
#include "utf8.h"

#include <math.h>
#include <stdio.h>

uint64_t bson_little(const uint8_t *p, int size) {
    uint64_t found = 0;
    while (size--) found = found << 8 | p[size];
    return found;
}

int bson_is(struct text text, const char *name) {
    return text.size == (int64_t)strlen(name) && !memcmp(text.at, name, (size_t)text.size);
}

int bson_take_name(struct cursor *c, uint8_t *type, struct text *name) {
    const uint8_t *end;
    if (!take8(c, type) || !left(c) || !(end = memchr(c->at, 0, (size_t)left(c)))) return STRANGE;
    name->at = c->at;
    name->size = end - c->at;
    c->at = end + 1;
    return is_utf8(*name) ? FINE : STRANGE;
}

int bson_enter(struct cursor *c, struct cursor *inside) {
    int64_t size;
    const uint8_t *p = c->at;
    if (left(c) < 5 || (size = (int32_t)bson_little(p, 4)) < 5 || size > left(c) || p[size - 1])
        return STRANGE;
    *inside = (struct cursor){p + 4, p + size - 1};
    c->at += size;
    return FINE;
}

int bson_take_string(struct cursor *c, struct text *text) {
    const uint8_t *p = take(c, 4);
    int64_t size = p ? (int32_t)bson_little(p, 4) : 0;
    if (size < 1 || !take_text(c, size, text) || text->at[--text->size]) return STRANGE;
    return is_utf8(*text) ? FINE : STRANGE;
}

int bson_put_text(struct walk *w, struct text text) {
    uint8_t *at;
    if (w->json) return pk_json_string(text, w->out);
    if (!is_utf8(text)) return STRANGE;
    if (!(at = room(w->out, 5))) return FULL;
    wrote(w->out, pk_string_header(at, text.size));
    return put(w->out, text.at, text.size);
}

int bson_put_word(struct walk *w, const char *word) {
    return bson_put_text(w, (struct text){(const uint8_t *)word, (int64_t)strlen(word)});
}

int bson_put_single(struct walk *w, const char *name) {
    int failed = put8(w->out, w->json ? '{' : 0x81);
    if (failed || (failed = bson_put_word(w, name))) return failed;
    return w->json ? put8(w->out, ':') : FINE;
}

int bson_put_end(struct walk *w) { return w->json ? put8(w->out, '}') : FINE; }

uint8_t *bson_decimal(uint8_t *at, int64_t value) {
    if (value < 0) *at++ = '-';
    return pk_digits(at, value < 0 ? 0 - (uint64_t)value : (uint64_t)value);
}

int bson_put_number(struct walk *w, int64_t value) {
    uint8_t *at = room(w->out, 21), digits[21];
    if (!at) return FULL;
    if (value > SAFE || value < -SAFE)
        return bson_put_text(w, (struct text){digits, bson_decimal(digits, value) - digits});
    if (w->json)
        at = bson_decimal(at, value);
    else
        at = value < 0 ? pk_msgpack_negative(at, value) : pk_msgpack_unsigned(at, (uint64_t)value);
    wrote(w->out, at);
    return FINE;
}

static int put_double(struct walk *w, double value) {
    char text[40];
    struct decimal d, shortest;
    uint8_t *at = room(w->out, 40);
    if (isnan(value)) return bson_put_word(w, "NaN");
    if (isinf(value)) return bson_put_word(w, value > 0 ? "Infinity" : "-Infinity");
    if (!at) return FULL;
    if (w->json) {
        int size = snprintf(text, sizeof text, "%.17g", value);
        if (pk_decimal((struct text){(uint8_t *)text, size}, &d)) return STRANGE;
        if (pk_shortest(&d, value, &shortest)) return STRANGE;
        at = pk_write_double(at, &shortest);
    } else {
        at = pk_msgpack_double(at, value);
    }
    if (!at) return STRANGE;
    wrote(w->out, at);
    return FINE;
}

static uint8_t *hex(uint8_t *out, const uint8_t *bytes, int size) {
    static const char digits[] = "0123456789abcdef";
    for (int i = 0; i < size; i++) *out++ = (uint8_t)digits[bytes[i] >> 4], *out++ = (uint8_t)digits[bytes[i] & 15];
    return out;
}

struct text bson_hex_text(uint8_t *out, const uint8_t *bytes) {
    return (struct text){out, hex(out, bytes, 12) - out};
}

struct text bson_uuid_text(uint8_t *out, const uint8_t *p) {
    uint8_t *at = hex(out, p, 4);
    for (int i = 4; i < 10; i += 2) *at++ = '-', at = hex(at, p + i, 2);
    *at++ = '-';
    return (struct text){out, hex(at, p + 10, 6) - out};
}

static uint8_t *padded(uint8_t *out, int64_t n, int digits) {
    for (int i = digits; i--; n /= 10) out[i] = (uint8_t)('0' + n % 10);
    return out + digits;
}

/* 2026-01-02T03:04:05.678Z; the calendar is Howard Hinnant's days_to_civil. */
static int put_date(struct walk *w, int64_t time) {
    int64_t days = (time - YEAR_1) / 86400000 + 306, rest = (time - YEAR_1) % 86400000;
    int64_t era = days / 146097, of_era = days % 146097;
    int64_t years = (of_era - of_era / 1460 + of_era / 36524 - of_era / 146096) / 365;
    int64_t of_year = of_era - (365 * years + years / 4 - years / 100);
    int64_t shifted = (5 * of_year + 2) / 153, month = shifted < 10 ? shifted + 3 : shifted - 9;
    uint8_t text[24], *at = padded(text, years + era * 400 + (month <= 2), 4);
    if (time < YEAR_1 || time >= YEAR_10000) return STRANGE;
    *at++ = '-', at = padded(at, month, 2);
    *at++ = '-', at = padded(at, of_year - (153 * shifted + 2) / 5 + 1, 2);
    *at++ = 'T', at = padded(at, rest / 3600000, 2);
    *at++ = ':', at = padded(at, rest / 60000 % 60, 2);
    *at++ = ':', at = padded(at, rest / 1000 % 60, 2);
    *at++ = '.', at = padded(at, rest % 1000, 3);
    *at++ = 'Z';
    return bson_put_text(w, (struct text){text, at - text});
}

static int put_timestamp(struct walk *w, const uint8_t *p) {
    int failed = bson_put_single(w, "$timestamp");
    if (failed || (failed = put8(w->out, w->json ? '{' : 0x82)) || (failed = bson_put_word(w, "t")))
        return failed;
    if ((w->json && put8(w->out, ':')) || bson_put_number(w, (int64_t)bson_little(p + 4, 4))) return FULL;
    if ((w->json && put8(w->out, ',')) || bson_put_word(w, "i")) return FULL;
    if ((w->json && put8(w->out, ':')) || bson_put_number(w, (int64_t)bson_little(p, 4))) return FULL;
    return bson_put_end(w) || bson_put_end(w) ? FULL : FINE;
}

/* Bytes, or a UUID. */
static int binary(struct walk *w, struct cursor *c) {
    const uint8_t *p = take(c, 5);
    struct text bytes;
    uint8_t text[36], *at;
    if (!p || !take_text(c, (int32_t)bson_little(p, 4), &bytes)) return STRANGE;
    if (p[4] == 4 && bytes.size == 16) return bson_put_text(w, bson_uuid_text(text, bytes.at));
    if (p[4]) return STRANGE;
    if (w->json) return pk_json_base64(bytes, w->out);
    if (!(at = room(w->out, 5))) return FULL;
    wrote(w->out, pk_bytes_header(at, bytes.size));
    return put(w->out, bytes.at, bytes.size);
}

int bson_value(struct walk *w, uint8_t type, struct cursor *c) {
    const uint8_t *p;
    struct text text;
    uint8_t digits[24];
    double number;
    uint64_t bits;
    switch (type) {
    case STRING:
        return bson_take_string(c, &text) ? STRANGE : bson_put_text(w, text);
    case DOCUMENT: case ARRAY:
        return bson_document(w, c, type == ARRAY);
    case BINARY:
        return binary(w, c);
    case OBJECT_ID:
        return (p = take(c, 12)) ? bson_put_text(w, bson_hex_text(digits, p)) : STRANGE;
    case BOOLEAN:
        if (!(p = take(c, 1)) || *p > 1) return STRANGE;
        if (!w->json) return put8(w->out, *p ? 0xC3 : 0xC2);
        return *p ? put(w->out, "true", 4) : put(w->out, "false", 5);
    case NOTHING:
        return w->json ? put(w->out, "null", 4) : put8(w->out, 0xC0);
    case INT32:
        return (p = take(c, 4)) ? bson_put_number(w, (int32_t)bson_little(p, 4)) : STRANGE;
    }
    if ((type != DOUBLE && type != DATE && type != TIMESTAMP && type != INT64) ||
        !(p = take(c, 8)))
        return STRANGE;
    bits = bson_little(p, 8);
    if (type == INT64) return bson_put_number(w, (int64_t)bits);
    if (type == TIMESTAMP) return put_timestamp(w, p);
    if (type == DATE)
        return (int64_t)bits < YEAR_1 || (int64_t)bits >= YEAR_10000 ? STRANGE
                                                                     : put_date(w, (int64_t)bits);
    memcpy(&number, &bits, 8);
    return put_double(w, number);
}

int bson_put_name(struct walk *w, struct text name, int first) {
    for (int i = first; i < w->names; i++)
        if (w->name[i].size == name.size && !memcmp(w->name[i].at, name.at, (size_t)name.size))
            return STRANGE;
    if (w->names == NAMES || bson_is(name, "$ref")) return STRANGE;
    w->name[w->names++] = name;
    int failed = bson_put_text(w, name);
    return failed || !w->json ? failed : put8(w->out, ':');
}

int bson_document(struct walk *w, struct cursor *c, int is_array) {
    int64_t start = w->out->size, count = 0;
    int first = w->names, failed;
    struct cursor in;
    struct text name;
    uint8_t type;
    if (bson_enter(c, &in) || ++w->depth > DEEPEST) return STRANGE;
    if (put8(w->out, is_array ? '[' : '{')) return FULL;
    for (; left(&in); count++) {
        if (bson_take_name(&in, &type, &name)) return STRANGE;
        if (w->json && count && put8(w->out, ',')) return FULL;
        if (!is_array && (failed = bson_put_name(w, name, first))) return failed;
        if ((failed = bson_value(w, type, &in))) return failed;
    }
    w->names = first;
    w->depth--;
    if (w->json) return put8(w->out, is_array ? ']' : '}');
    return pk_header(w->out, start, count, is_array ? pk_array_header : pk_map_header);
}
