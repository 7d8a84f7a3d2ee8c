/* Scalars: see values.h. Each function is one family of penstock/wire/pgoutput/values. */
#include "values.h"

#include "json.h"
#include "messagepack.h"
#include "number.h"
#include "utf8.h"

static int is(struct text text, const char *word) {
    return text.size == (int64_t)strlen(word) && !memcmp(text.at, word, (size_t)text.size);
}

/* Text that is known to be plain ASCII without quotes and backslashes. */
static int put_plain(const struct style *style, struct text text, struct buffer *out) {
    uint8_t *at = room(out, text.size + 5);
    if (!at) return FULL;
    if (style->json)
        *at++ = '"';
    else
        at = pk_string_header(at, text.size);
    memcpy(at, text.at, (size_t)text.size);
    at += text.size;
    if (style->json) *at++ = '"';
    wrote(out, at);
    return FINE;
}

static int boolean(const struct style *style, struct text raw, struct buffer *out) {
    int yes = is(raw, "t");
    if (!yes && !is(raw, "f")) return STRANGE;
    if (!style->json) return put8(out, yes ? 0xC3 : 0xC2);
    return yes ? put(out, "true", 4) : put(out, "false", 5);
}

static int integer(const struct style *style, struct text raw, struct buffer *out) {
    uint64_t amount;
    int negative;
    uint8_t *at = room(out, 24);
    if (!at) return FULL;
    if (pk_integer(raw, &negative, &amount)) return STRANGE;
    negative = negative && amount;
    if (style->json) {
        if (negative) *at++ = '-';
        at = pk_digits(at, amount);
    } else {
        at = negative ? pk_msgpack_negative(at, (int64_t)(0 - amount))
                      : pk_msgpack_unsigned(at, amount);
    }
    wrote(out, at);
    return FINE;
}

static int floating(const struct style *style, struct text raw, struct buffer *out) {
    struct decimal d, shortest;
    double value;
    uint8_t *at = room(out, 64);
    if (!at) return FULL;
    if (pk_decimal(raw, &d)) {
        int known = is(raw, "NaN") || is(raw, "Infinity") || is(raw, "-Infinity");
        return known ? put_plain(style, raw, out) : STRANGE;
    }
    if (pk_double(&d, &value)) return STRANGE;
    if (style->json) {
        if (pk_shortest(&d, value, &shortest)) return STRANGE;
        if (!(at = pk_write_double(at, &shortest))) return STRANGE;
    } else {
        at = pk_msgpack_double(at, value);
    }
    wrote(out, at);
    return FINE;
}

static int text(const struct style *style, struct text raw, struct buffer *out) {
    uint8_t *at;
    if (style->json) return pk_json_string(raw, out);
    if (!is_utf8(raw)) return STRANGE;
    if (!(at = room(out, raw.size + 5))) return FULL;
    at = pk_string_header(at, raw.size);
    memcpy(at, raw.at, (size_t)raw.size);
    wrote(out, at + raw.size);
    return FINE;
}

static int nibble(int c) {
    int low = c | 0x20;
    return c >= '0' && c <= '9' ? c - '0' : low >= 'a' && low <= 'f' ? low - 'a' + 10 : -1;
}

static int unhex(struct text hex, uint8_t *at) {
    int wrong = 0;
    for (int64_t i = 0; i + 1 < hex.size; i += 2) {
        int high = nibble(hex.at[i]), low = nibble(hex.at[i + 1]);
        wrong |= high | low;
        *at++ = (uint8_t)((unsigned)high << 4 | (unsigned)low);
    }
    return wrong < 0 || hex.size % 2 ? STRANGE : FINE;
}

static int bytea(struct style *style, struct text raw, struct buffer *out) {
    struct text hex = {raw.at + 2, raw.size - 2}, bytes;
    struct buffer room_for = {0};
    uint8_t *at;
    int failed;
    if (raw.size < 2 || raw.at[0] != '\\' || raw.at[1] != 'x') return STRANGE;
    if (!style->json) {
        if (!(at = room(out, hex.size / 2 + 5))) return FULL;
        at = pk_bytes_header(at, hex.size / 2);
        failed = unhex(hex, at);
        wrote(out, at + hex.size / 2);
        return failed;
    }
    /* Not the style's scratch: an array's element is there. */
    if (!(at = room(&room_for, hex.size / 2 + 1))) return FULL;
    bytes = (struct text){at, hex.size / 2};
    failed = unhex(hex, at);
    if (!failed) failed = pk_json_base64(bytes, out);
    free(room_for.data);
    return failed;
}

/* `pattern`: 0 is any digit, every other character is itself. */
static int looks_like(const uint8_t *p, const char *pattern) {
    for (; *pattern; p++, pattern++)
        if (*pattern == '0' ? *p < '0' || *p > '9' : *p != (uint8_t)*pattern) return 0;
    return 1;
}

static int infinite(struct text raw) { return is(raw, "infinity") || is(raw, "-infinity"); }

static int date(const struct style *style, struct text raw, struct buffer *out) {
    int known = raw.size == 10 && looks_like(raw.at, "0000-00-00");
    return known || infinite(raw) ? put_plain(style, raw, out) : STRANGE;
}

/* `2026-01-02 03:04:05.678` becomes `2026-01-02T03:04:05.678`, and with `zone` `+00` becomes Z. */
static int moment(const struct style *style, struct text raw, int zone, struct buffer *out) {
    uint8_t iso[32];
    int64_t size = raw.size - (zone ? 3 : 0);
    if (infinite(raw)) return put_plain(style, raw, out);
    if (size < 19 || size > 26 || size == 20) return STRANGE;
    if (zone && memcmp(raw.at + size, "+00", 3)) return STRANGE;
    if (!looks_like(raw.at, "0000-00-00 00:00:00")) return STRANGE;
    if (size > 19 && raw.at[19] != '.') return STRANGE;
    for (int64_t i = 20; i < size; i++)
        if (raw.at[i] < '0' || raw.at[i] > '9') return STRANGE;
    memcpy(iso, raw.at, (size_t)size);
    iso[10] = 'T';
    if (zone) iso[size++] = 'Z';
    return put_plain(style, (struct text){iso, size}, out);
}

static int document(const struct style *style, struct text raw, struct buffer *out) {
    const uint8_t *p = raw.at, *end = raw.at + raw.size;
    int failed;
    if (!style->json) return text(style, raw, out);
    while (p < end && strchr(" \n\t\r", *p) && *p) p++;
    if (p == end || (*p != '"' && *p != 'n')) return pk_json_copy(raw, out);
    failed = pk_json_check(raw);
    return failed ? failed : pk_json_string(raw, out);
}

int pk_scalar(struct style *style, int32_t kind, struct text raw, struct buffer *out) {
    switch (kind) {
    case KIND_BOOLEAN: return boolean(style, raw, out);
    case KIND_INTEGER: return integer(style, raw, out);
    case KIND_FLOAT: return floating(style, raw, out);
    case KIND_TEXT: return text(style, raw, out);
    case KIND_BYTEA: return bytea(style, raw, out);
    case KIND_DOCUMENT: return document(style, raw, out);
    case KIND_DATE: return date(style, raw, out);
    case KIND_TIMESTAMP: return moment(style, raw, 0, out);
    case KIND_TIMESTAMPTZ: return moment(style, raw, 1, out);
    default: return STRANGE;
    }
}

int pk_value(struct style *style, const struct column *column, struct text raw, struct buffer *out) {
    if (column->flags & FLAG_ARRAY) return pk_array(style, column, raw, out);
    return pk_scalar(style, column->kind, raw, out);
}

int pk_null(const struct style *style, struct buffer *out) {
    return style->json ? put(out, "null", 4) : put8(out, 0xC0);
}

int pk_plain(struct style *style, const struct column *column, struct text raw, struct buffer *out) {
    int32_t kind = column->kind;
    int64_t start = out->size;
    int json = style->json, failed;
    if (kind == KIND_TEXT && !(column->flags & FLAG_ARRAY)) {
        if (!is_utf8(raw)) return STRANGE;
        return put(out, raw.at, raw.size);
    }
    style->json = 1;
    failed = pk_value(style, column, raw, out);
    style->json = json;
    if (failed || out->size == start || out->data[start] != '"') return failed;
    /* Dates, base64 and the like: a string, without a character that is escaped. */
    out->size -= 2;
    memmove(out->data + start, out->data + start + 1, (size_t)(out->size - start));
    return FINE;
}
