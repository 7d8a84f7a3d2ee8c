/* Documents of json and jsonb: one walk that checks all of the grammar, and writes MessagePack
 * where that is asked for.
 *
 * It takes less than Python's parsers do (great depth, half surrogates, numbers with large exponents
 * are STRANGE), and of what it takes it makes the same. */
#include "json.h"
#include "messagepack.h"
#include "number.h"
#include "utf8.h"

#define DEEPEST 64
/* Keys of the objects that are open; more are STRANGE. */
#define KEYS 512

struct key {
    int64_t at, size; /* in the output: it moves when it grows */
};

struct walk {
    struct cursor in;
    struct buffer *out; /* NULL: only check */
    int depth, keys;
    struct key key[KEYS];
};

static int value(struct walk *w);

static void space(struct walk *w) {
    int c;
    while ((c = peek(&w->in)) == ' ' || c == '\n' || c == '\t' || c == '\r') w->in.at++;
}

static int hex4(struct walk *w, uint32_t *code) {
    const uint8_t *p = take(&w->in, 4);
    *code = 0;
    for (int i = 0; p && i < 4; i++) {
        int c = p[i], low = c | 0x20;
        int digit = c >= '0' && c <= '9' ? c - '0' : low >= 'a' && low <= 'f' ? low - 'a' + 10 : -1;
        if (digit < 0) return STRANGE;
        *code = *code << 4 | (uint32_t)digit;
    }
    return p ? FINE : STRANGE;
}

/* After a backslash and `u`: one character, which may be two such escapes. */
static int escaped_character(struct walk *w, uint32_t *code) {
    const uint8_t *p;
    uint32_t low;
    if (hex4(w, code)) return STRANGE;
    if (*code < 0xD800 || *code > 0xDFFF) return FINE;
    if (*code > 0xDBFF || !(p = take(&w->in, 2)) || p[0] != '\\' || p[1] != 'u') return STRANGE;
    if (hex4(w, &low) || low < 0xDC00 || low > 0xDFFF) return STRANGE;
    *code = 0x10000 + ((*code - 0xD800) << 10) + (low - 0xDC00);
    return FINE;
}

static int put_character(struct buffer *out, uint32_t code) {
    uint8_t *at = room(out, 4);
    if (!at) return FULL;
    if (code < 0x80) {
        *at++ = (uint8_t)code;
    } else if (code < 0x800) {
        *at++ = (uint8_t)(0xC0 | code >> 6);
        *at++ = (uint8_t)(0x80 | (code & 63));
    } else if (code < 0x10000) {
        *at++ = (uint8_t)(0xE0 | code >> 12);
        *at++ = (uint8_t)(0x80 | (code >> 6 & 63));
        *at++ = (uint8_t)(0x80 | (code & 63));
    } else {
        *at++ = (uint8_t)(0xF0 | code >> 18);
        *at++ = (uint8_t)(0x80 | (code >> 12 & 63));
        *at++ = (uint8_t)(0x80 | (code >> 6 & 63));
        *at++ = (uint8_t)(0x80 | (code & 63));
    }
    wrote(out, at);
    return FINE;
}

static int escape(struct walk *w) {
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    uint8_t c;
    uint32_t code;
    if (!take8(&w->in, &c)) return STRANGE;
    if (c == 'u') {
        if (escaped_character(w, &code)) return STRANGE;
    } else {
        const char *found = c ? strchr(from, c) : NULL;
        if (!found) return STRANGE;
        code = (uint32_t)to[found - from];
    }
    return w->out ? put_character(w->out, code) : FINE;
}

/* Up to the next quote or backslash: plain text. */
static int plain(struct walk *w) {
    const uint8_t *p = w->in.at, *end = w->in.end;
    struct text text = {p, 0};
    while (p < end && *p != '"' && *p != '\\' && *p >= 0x20) p++;
    if (p == end || *p < 0x20) return STRANGE;
    text.size = p - text.at;
    w->in.at = p;
    if (!is_utf8(text)) return STRANGE;
    return w->out ? put(w->out, text.at, text.size) : FINE;
}

/* After the first quote. */
static int string(struct walk *w) {
    int64_t start = w->out ? w->out->size : 0;
    int failed;
    uint8_t c;
    if (w->out && put8(w->out, 0)) return FULL;
    for (;;) {
        if ((failed = plain(w)) || !take8(&w->in, &c)) return failed ? failed : STRANGE;
        if (c == '"') break;
        if ((failed = escape(w))) return failed;
    }
    return w->out ? pk_header(w->out, start, w->out->size - start - 1, pk_string_header) : FINE;
}

static int digits_as_string(struct walk *w, struct text text) {
    uint8_t *at = room(w->out, 5);
    if (!at) return FULL;
    wrote(w->out, pk_string_header(at, text.size));
    return put(w->out, text.at, text.size);
}

static int whole_number(struct walk *w, const struct decimal *d) {
    uint64_t amount;
    int negative;
    uint8_t *at;
    if (pk_integer(d->text, &negative, &amount)) return digits_as_string(w, d->text);
    if (!(at = room(w->out, 9))) return FULL;
    at = negative && amount ? pk_msgpack_negative(at, (int64_t)(0 - amount))
                            : pk_msgpack_unsigned(at, amount);
    wrote(w->out, at);
    return FINE;
}

static int number(struct walk *w) {
    struct text text = {w->in.at, 0};
    struct decimal d, shortest;
    double found;
    uint8_t *at;
    int c, first;
    while (((c = peek(&w->in)) >= '0' && c <= '9') || c == '-' || c == '+' || c == '.' ||
           (c | 0x20) == 'e')
        w->in.at++;
    text.size = w->in.at - text.at;
    if (pk_decimal(text, &d)) return STRANGE;
    first = d.negative;
    if (text.size > first + 1 && text.at[first] == '0' && text.at[first + 1] >= '0' &&
        text.at[first + 1] <= '9')
        return STRANGE; /* a leading zero is not JSON */
    if (!w->out) return d.point > 300 ? STRANGE : FINE; /* perhaps no double */
    if (d.whole) return whole_number(w, &d);
    if (d.point < -40 || d.point > 40) return STRANGE;
    if (d.count > 17) return digits_as_string(w, text);
    if (pk_double(&d, &found) || pk_shortest(&d, found, &shortest)) return STRANGE;
    if (shortest.count != d.count || shortest.mantissa != d.mantissa || shortest.point != d.point)
        return digits_as_string(w, text);
    if (!(at = room(w->out, 9))) return FULL;
    wrote(w->out, pk_msgpack_double(at, found));
    return FINE;
}

static int word(struct walk *w, const char *letters, uint8_t written) {
    int64_t size = (int64_t)strlen(letters);
    const uint8_t *p = take(&w->in, size);
    if (!p || memcmp(p, letters, (size_t)size)) return STRANGE;
    return w->out ? put8(w->out, written) : FINE;
}

static int array(struct walk *w) {
    int64_t start = w->out ? w->out->size : 0, count = 0;
    int failed, c;
    if (w->out && put8(w->out, 0)) return FULL;
    space(w);
    if (peek(&w->in) == ']') {
        w->in.at++;
    } else {
        do {
            if ((failed = value(w))) return failed;
            count++;
            space(w);
            c = peek(&w->in);
            w->in.at += c >= 0;
        } while (c == ',');
        if (c != ']') return STRANGE;
    }
    return w->out ? pk_header(w->out, start, count, pk_array_header) : FINE;
}

/* The keys of one object: where its first is, and whether each so far comes after the one before. */
struct object {
    int first, sorted;
};

/* A key that is there twice is STRANGE. jsonb's are sorted by size, and then by their bytes, so that
 * nearly always one comparison will do. */
static int remember(struct walk *w, struct object *o, struct key key) {
    const uint8_t *bytes = w->out->data;
    if (w->keys == KEYS) return STRANGE;
    if (w->keys > o->first && o->sorted) {
        const struct key *last = &w->key[w->keys - 1];
        o->sorted = last->size < key.size ||
                    (last->size == key.size &&
                     memcmp(bytes + last->at, bytes + key.at, (size_t)key.size) < 0);
    }
    for (int i = o->first; !o->sorted && i < w->keys; i++)
        if (w->key[i].size == key.size &&
            !memcmp(bytes + w->key[i].at, bytes + key.at, (size_t)key.size))
            return STRANGE;
    w->key[w->keys++] = key;
    return FINE;
}

static int member(struct walk *w, struct object *o) {
    struct key key;
    uint8_t c;
    int failed;
    space(w);
    if (!take8(&w->in, &c) || c != '"') return STRANGE;
    key.at = w->out ? w->out->size : 0;
    if ((failed = string(w))) return failed;
    if (w->out) {
        key.size = w->out->size - key.at;
        if ((failed = remember(w, o, key))) return failed;
    }
    space(w);
    if (!take8(&w->in, &c) || c != ':') return STRANGE;
    return value(w);
}

static int object(struct walk *w) {
    struct object o = {w->keys, 1};
    int64_t start = w->out ? w->out->size : 0, count = 0;
    int failed, c;
    if (w->out && put8(w->out, 0)) return FULL;
    space(w);
    if (peek(&w->in) == '}') {
        w->in.at++;
    } else {
        do {
            if ((failed = member(w, &o))) return failed;
            count++;
            space(w);
            c = peek(&w->in);
            w->in.at += c >= 0;
        } while (c == ',');
        if (c != '}') return STRANGE;
    }
    w->keys = o.first;
    return w->out ? pk_header(w->out, start, count, pk_map_header) : FINE;
}

static int value(struct walk *w) {
    int failed = STRANGE;
    space(w);
    switch (peek(&w->in)) {
    case '"': w->in.at++; return string(w);
    case 't': return word(w, "true", 0xC3);
    case 'f': return word(w, "false", 0xC2);
    case 'n': return word(w, "null", 0xC0);
    case '[': case '{':
        if (w->depth == DEEPEST) return STRANGE;
        w->depth++;
        failed = *w->in.at++ == '[' ? array(w) : object(w);
        w->depth--;
        return failed;
    default: return number(w);
    }
}

static int walk(struct text document, struct buffer *out) {
    struct walk w;
    int failed;
    w.in = (struct cursor){document.at, document.at + document.size};
    w.out = out;
    w.depth = w.keys = 0;
    failed = value(&w);
    space(&w);
    return failed ? failed : w.in.at == w.in.end ? FINE : STRANGE;
}

int pk_json_check(struct text document) { return walk(document, NULL); }

int pk_json_copy(struct text document, struct buffer *out) {
    int failed = pk_json_check(document);
    return failed ? failed : put(out, document.at, document.size);
}

int pk_json_to_msgpack(struct text document, struct buffer *out) { return walk(document, out); }
