/* Lines of COPY -> Arrow arrays with the types of their columns, for typed/native.py.
 *
 * Strict, and for ordinary values: all else is STRANGE, and Arrow's reader of CSV reads the lines. */
#include <stdatomic.h>

#include "arrow.h"
#include "native.h"
#include "typed.h"
#include "utf8.h"

enum { TEXT, BOOLEAN, INT16, INT32, INT64, DATE, TIMESTAMP, TIMESTAMPTZ, DECIMAL, BINARY, DOUBLE };

/* What becomes of a cell. `kind` below 0: nothing. `delimiter`: of the elements of an array, or 0. */
struct wanted {
    int32_t kind, delimiter, precision, scale;
};

/* A column: `values`, and what parts them into arrays. */
struct made {
    struct wanted wanted;
    struct buffer valid, ends, data, list_valid, list_ends;
    int64_t count, nulls, lists, null_lists;
    struct ArrowArray array, values, *children[1];
    const void *buffers[2], *value_buffers[3];
};

/* Freed when the last of its arrays is. */
struct holder {
    atomic_int arrays;
    int32_t count;
    struct buffer plain, element; /* a cell, and an element in it, without escapes */
    struct ArrowArray **columns;
    const void *none[1];
    struct made made[];
};

EXPORT int32_t penstock_typed_lines(const uint8_t *data, int64_t size, const int32_t *ends,
                                    int64_t rows, const struct wanted *wanted, int32_t count,
                                    struct ArrowArray *out);

static void discard(struct holder *h) {
    for (struct made *m = h->made; m < h->made + h->count; m++) {
        free(m->valid.data), free(m->ends.data), free(m->data.data);
        free(m->list_valid.data), free(m->list_ends.data);
    }
    free(h->plain.data), free(h->element.data), free(h->columns), free(h);
}

static void release(struct ArrowArray *array) {
    struct holder *h = array->private_data;
    for (int64_t i = 0; i < array->n_children; i++)
        if (array->children[i]->release) array->children[i]->release(array->children[i]);
    array->release = NULL;
    if (atomic_fetch_sub(&h->arrays, 1) == 1) discard(h);
}

static int bit(struct buffer *b, int64_t number, int is_set) {
    if (number % 8 == 0 && put8(b, 0)) return FULL;
    b->data[number / 8] |= (uint8_t)(is_set << number % 8);
    return FINE;
}

static int put32(struct buffer *b, int64_t number) {
    int32_t value = (int32_t)number;
    return put(b, &value, 4);
}

static int decimal(struct made *m, struct text text) {
#ifdef __SIZEOF_INT128__
    const uint8_t *p = text.at, *end = text.at + text.size;
    int negative = p < end && *p == '-';
    int32_t before = 0, after = -1, zeros = 0;
    unsigned __int128 amount = 0;
    for (p += negative; p < end; p++) {
        if (*p == '.' && after < 0 && before + zeros) {
            after = 0;
            continue;
        }
        if (*p < '0' || *p > '9' || before + after > 38 || zeros > 1) return STRANGE;
        amount = amount * 10 + (unsigned)(*p - '0');
        if (after >= 0) after++;
        else if (before || *p != '0') before++;
        else zeros++;
    }
    if (before + zeros == 0 || after == 0) return STRANGE;
    if (after < 0) after = 0;
    if (after > m->wanted.scale || before > m->wanted.precision - m->wanted.scale) return STRANGE;
    for (; after < m->wanted.scale; after++) amount *= 10;
    if (negative) amount = 0 - amount;
    return put(&m->data, &amount, 16);
#else
    return (void)m, (void)text, STRANGE;
#endif
}

static int binary(struct made *m, struct text text) {
    uint8_t *at = room(&m->data, text.size / 2);
    if (text.size < 2 || text.size % 2 || memcmp(text.at, "\\x", 2)) return STRANGE;
    if (!at) return FULL;
    for (const uint8_t *p = text.at + 2; p < text.at + text.size; p += 2) {
        int high = nibble(p[0]), low = nibble(p[1]);
        if (high < 0 || low < 0) return STRANGE;
        *at++ = (uint8_t)(high << 4 | low);
    }
    wrote(&m->data, at);
    return FINE;
}

static int fixed(struct made *m, struct text text) {
    static const uint8_t bits[] = {[INT16] = 16, [INT32] = 32, [INT64] = 64};
    struct cursor c = {text.at, text.at + text.size};
    int32_t kind = m->wanted.kind;
    int64_t value = 0;
    if (text.at && kind <= INT64 && whole(text, bits[kind], &value)) return STRANGE;
    if (text.at && kind == DATE && (days(&c, &value) || left(&c))) return STRANGE;
    if (text.at && kind > DATE && (micros(&c, kind == TIMESTAMPTZ, &value) || left(&c)))
        return STRANGE;
    if (kind == INT16) {
        int16_t small = (int16_t)value;
        return put(&m->data, &small, 2);
    }
    return kind == INT32 || kind == DATE ? put32(&m->data, value) : put(&m->data, &value, 8);
}

/* A value; null without an address. */
static int one(struct made *m, struct text text) {
    static const uint8_t nothing[16] = {0};
    int failed = FINE, is_true = text.at && text.size == 1 && *text.at == 't';
    if (bit(&m->valid, m->count, text.at != NULL)) return FULL;
    m->nulls += !text.at;
    switch (m->wanted.kind) {
    case TEXT:
        if (text.at && !is_utf8(text)) return STRANGE;
        if (text.at) failed = put(&m->data, text.at, text.size);
        break;
    case BINARY:
        if (text.at) failed = binary(m, text);
        break;
    case BOOLEAN:
        if (text.at && !is_true && (text.size != 1 || *text.at != 'f')) return STRANGE;
        failed = bit(&m->data, m->count, is_true);
        break;
    case DECIMAL:
        failed = text.at ? decimal(m, text) : put(&m->data, nothing, 16);
        break;
    case DOUBLE: {
        double value = 0;
        if (text.at && real(text, &value)) return STRANGE;
        failed = put(&m->data, &value, 8);
        break;
    }
    default:
        failed = fixed(m, text);
    }
    m->count++;
    if (!failed && (m->wanted.kind == TEXT || m->wanted.kind == BINARY))
        failed = put32(&m->ends, m->data.size);
    return failed;
}

/* After its first quote. */
static int quoted(struct holder *h, struct made *m, struct cursor *c) {
    const uint8_t *first = c->at;
    struct text text;
    while (c->at < c->end && *c->at != '"' && *c->at != '\\') c->at++;
    text = (struct text){first, c->at - first};
    if (peek(c) == '\\') {
        uint8_t *at = room(&h->element, c->end - first);
        if (!at) return FULL;
        for (c->at = first; c->at < c->end && *c->at != '"'; c->at++) {
            if (*c->at == '\\' && ++c->at == c->end) return STRANGE;
            *at++ = *c->at;
        }
        text = (struct text){h->element.data, at - h->element.data};
    }
    return sign(c, '"') ? STRANGE : one(m, text);
}

/* An array of one dimension that counts from 1. */
static int list(struct holder *h, struct made *m, struct text text) {
    struct cursor c = {text.at, text.at + text.size};
    uint8_t delimiter = (uint8_t)m->wanted.delimiter, next = delimiter;
    int failed;
    if (sign(&c, '{')) return STRANGE;
    if (peek(&c) == '}') next = *c.at++;
    while (next == delimiter) {
        if (peek(&c) == '"') {
            c.at++;
            failed = quoted(h, m, &c);
        } else {
            text.at = c.at;
            while (c.at < c.end && *c.at != delimiter && *c.at != '}') {
                if (*c.at == '{' || *c.at == '"' || *c.at == '\\') return STRANGE;
                c.at++;
            }
            text.size = c.at - text.at;
            if (!text.size) return STRANGE;
            if (text.size == 4 && !memcmp(text.at, "NULL", 4)) text.at = NULL;
            failed = one(m, text);
        }
        if (failed) return failed;
        if (!take8(&c, &next)) return STRANGE;
    }
    return next == '}' && !left(&c) ? FINE : STRANGE;
}

/* COPY's escapes (copyto.c, CopyAttributeOutText); other characters stand for themselves. */
static int unescaped(struct holder *h, struct text *text) {
    static const char names[] = "bfnrtv", values[] = "\b\f\n\r\t\v";
    const uint8_t *p = text->at, *end = p + text->size;
    uint8_t *at = room(&h->plain, text->size);
    if (!at) return FULL;
    for (; p < end; p++) {
        const char *found;
        if (*p != '\\') {
            *at++ = *p;
            continue;
        }
        if (++p == end) return STRANGE;
        found = *p ? strchr(names, *p) : NULL;
        *at++ = found ? (uint8_t)values[found - names] : *p;
    }
    *text = (struct text){h->plain.data, at - h->plain.data};
    return FINE;
}

static int cell(struct holder *h, struct made *m, struct text text) {
    int failed = FINE;
    if (text.size == 2 && text.at[0] == '\\' && (text.at[1] == 'N' || text.at[1] == 'U'))
        text.at = NULL;
    else if (memchr(text.at, '\\', (size_t)text.size))
        failed = unescaped(h, &text);
    if (failed || !m->wanted.delimiter) return failed ? failed : one(m, text);
    if (bit(&m->list_valid, m->lists++, text.at != NULL)) return FULL;
    m->null_lists += !text.at;
    if (text.at) failed = list(h, m, text);
    return failed ? failed : put32(&m->list_ends, m->count);
}

static int line(struct holder *h, const uint8_t *at, const uint8_t *end) {
    for (int32_t n = 0; n < h->count; n++) {
        const uint8_t *stop = memchr(at, '\t', (size_t)(end - at));
        int failed;
        if (!stop != (n == h->count - 1)) return STRANGE;
        if (!stop) stop = end;
        if (h->made[n].wanted.kind >= 0 &&
            (failed = cell(h, &h->made[n], (struct text){at, stop - at})))
            return failed;
        at = stop + 1;
    }
    return FINE;
}

static void init(struct holder *h, struct ArrowArray *a, int64_t length, int64_t nulls,
                 int64_t buffers, const void **at) {
    *a = (struct ArrowArray){.length = length, .null_count = nulls, .n_buffers = buffers,
                             .buffers = at, .release = release, .private_data = h};
    atomic_fetch_add(&h->arrays, 1);
}

static void export(struct holder *h, struct made *m) {
    int has_ends = m->wanted.kind == TEXT || m->wanted.kind == BINARY;
    struct ArrowArray *values = m->wanted.delimiter ? &m->values : &m->array;
    m->value_buffers[0] = m->nulls ? m->valid.data : NULL;
    m->value_buffers[1] = has_ends ? m->ends.data : m->data.data;
    m->value_buffers[2] = m->data.data;
    init(h, values, m->count, m->nulls, has_ends ? 3 : 2, m->value_buffers);
    if (!m->wanted.delimiter) return;
    m->buffers[0] = m->null_lists ? m->list_valid.data : NULL;
    m->buffers[1] = m->list_ends.data;
    init(h, &m->array, m->lists, m->null_lists, 2, m->buffers);
    m->children[0] = values;
    m->array.n_children = 1;
    m->array.children = m->children;
}

/* A struct of the wanted columns in the order of the lines. `ends`: where each of `rows` lines
 * begins, and the last one ends; or NULL: each has a line end. */
int32_t penstock_typed_lines(const uint8_t *data, int64_t size, const int32_t *ends, int64_t rows,
                             const struct wanted *wanted, int32_t count, struct ArrowArray *out) {
    struct holder *h = calloc(1, sizeof *h + (size_t)count * sizeof h->made[0]);
    const uint8_t *at = data, *end = data + size;
    int64_t lines = 0;
    int failed = FINE;
    if (!h) return FULL;
    h->count = count;
    if (!(h->columns = calloc((size_t)count + 1, sizeof *h->columns))) failed = FULL;
    for (struct made *m = h->made; m < h->made + count; m++) {
        m->wanted = wanted[m - h->made];
        if (!room(&m->data, 1) || put32(&m->ends, 0) || put32(&m->list_ends, 0)) failed = FULL;
    }
    for (; ends && !failed && lines < rows; lines++)
        failed = line(h, data + ends[lines], data + ends[lines + 1]);
    for (; !ends && !failed && at < end; lines++) {
        const uint8_t *stop = memchr(at, '\n', (size_t)(end - at));
        failed = stop ? line(h, at, stop) : STRANGE;
        if (!failed) at = stop + 1;
    }
    /* What an end or a number of values cannot hold: an Arrow array of this kind has 31 bits. */
    for (struct made *m = h->made; m < h->made + count && !failed; m++)
        if (m->data.size > INT32_MAX || m->count > INT32_MAX) failed = STRANGE;
    if (failed) return discard(h), failed;
    atomic_init(&h->arrays, 0);
    init(h, out, lines, 0, 1, h->none);
    out->children = h->columns;
    for (struct made *m = h->made; m < h->made + count; m++)
        if (m->wanted.kind >= 0) export(h, m), h->columns[out->n_children++] = &m->array;
    return FINE;
}
