/* Change events of MongoDB, which are BSON -> the values of changes, and their images as JSON or
 * MessagePack.
 *
 * It makes what penstock/wire/changestream/changes.py makes, of the ordinary types. An event with
 * anything else in it, or that is broken anywhere, is STRANGE: Python reads it. */
#include "json.h"
#include "messagepack.h"
#include "native.h"
#include "number.h"
#include "utf8.h"

#include <math.h>
#include <stdio.h>

/* Documents inside of each other, and names of those that are open; more are STRANGE. */
enum { DEEPEST = 64, NAMES = 512 };
enum { DOUBLE = 1, STRING, DOCUMENT, ARRAY, BINARY, OBJECT_ID = 7, BOOLEAN, DATE, NOTHING,
       INT32 = 16, TIMESTAMP, INT64 };
#define SAFE (((int64_t)1 << 53) - 1)
/* Milliseconds: the years 1 to 9999. */
#define YEAR_1 (-62135596800000)
#define YEAR_10000 253402300800000

struct walk {
    struct buffer *out;
    int json, depth, names;
    struct text name[NAMES];
};

/* An element's type, name, and value, which begins at `at`. */
struct element {
    uint8_t type;
    struct text name;
    struct cursor value;
};

static uint64_t little(const uint8_t *p, int size) {
    uint64_t found = 0;
    while (size--) found = found << 8 | p[size];
    return found;
}

static int is(struct text text, const char *name) {
    return text.size == (int64_t)strlen(name) && !memcmp(text.at, name, (size_t)text.size);
}

/* The next element's type and name; its value is next. */
static int take_name(struct cursor *c, uint8_t *type, struct text *name) {
    const uint8_t *end;
    if (!take8(c, type) || !left(c) || !(end = memchr(c->at, 0, (size_t)left(c)))) return STRANGE;
    name->at = c->at;
    name->size = end - c->at;
    c->at = end + 1;
    return FINE;
}

/* What is inside of a document or an array. */
static int enter(struct cursor *c, struct cursor *inside) {
    int64_t size;
    const uint8_t *p = c->at;
    if (left(c) < 5 || (size = (int32_t)little(p, 4)) < 5 || size > left(c) || p[size - 1])
        return STRANGE;
    *inside = (struct cursor){p + 4, p + size - 1};
    c->at += size;
    return FINE;
}

static int take_string(struct cursor *c, struct text *text) {
    const uint8_t *p = take(c, 4);
    int64_t size = p ? (int32_t)little(p, 4) : 0;
    if (size < 1 || !take_text(c, size, text) || text->at[--text->size]) return STRANGE;
    return is_utf8(*text) ? FINE : STRANGE;
}

static int put_text(struct walk *w, struct text text) {
    uint8_t *at;
    if (w->json) return pk_json_string(text, w->out);
    if (!is_utf8(text)) return STRANGE;
    if (!(at = room(w->out, 5))) return FULL;
    wrote(w->out, pk_string_header(at, text.size));
    return put(w->out, text.at, text.size);
}

static int put_word(struct walk *w, const char *word) {
    return put_text(w, (struct text){(const uint8_t *)word, (int64_t)strlen(word)});
}

/* The head of a map of one, with its name. */
static int put_single(struct walk *w, const char *name) {
    int said = put8(w->out, w->json ? '{' : 0x81);
    if (said || (said = put_word(w, name))) return said;
    return w->json ? put8(w->out, ':') : FINE;
}

static int put_end(struct walk *w) { return w->json ? put8(w->out, '}') : FINE; }

static uint8_t *decimal(uint8_t *at, int64_t value) {
    if (value < 0) *at++ = '-';
    return pk_digits(at, value < 0 ? 0 - (uint64_t)value : (uint64_t)value);
}

static int put_number(struct walk *w, int64_t value) {
    uint8_t *at = room(w->out, 21), digits[21];
    if (!at) return FULL;
    if (value > SAFE || value < -SAFE)
        return put_text(w, (struct text){digits, decimal(digits, value) - digits});
    if (w->json)
        at = decimal(at, value);
    else
        at = value < 0 ? pk_msgpack_negative(at, value) : pk_msgpack_unsigned(at, (uint64_t)value);
    wrote(w->out, at);
    return FINE;
}

static int put_double(struct walk *w, double value) {
    char text[40];
    struct decimal d, shortest;
    uint8_t *at = room(w->out, 40);
    if (isnan(value)) return put_word(w, "NaN");
    if (isinf(value)) return put_word(w, value > 0 ? "Infinity" : "-Infinity");
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

static struct text hex_text(uint8_t *out, const uint8_t *bytes) {
    return (struct text){out, hex(out, bytes, 12) - out};
}

static struct text uuid_text(uint8_t *out, const uint8_t *p) {
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
    return put_text(w, (struct text){text, at - text});
}

static int put_timestamp(struct walk *w, const uint8_t *p) {
    int said = put_single(w, "$timestamp");
    if (said || (said = put8(w->out, w->json ? '{' : 0x82)) || (said = put_word(w, "t")))
        return said;
    if ((w->json && put8(w->out, ':')) || put_number(w, (int64_t)little(p + 4, 4))) return FULL;
    if ((w->json && put8(w->out, ',')) || put_word(w, "i")) return FULL;
    if ((w->json && put8(w->out, ':')) || put_number(w, (int64_t)little(p, 4))) return FULL;
    return put_end(w) || put_end(w) ? FULL : FINE;
}

/* Bytes, or a UUID. */
static int binary(struct walk *w, struct cursor *c) {
    const uint8_t *p = take(c, 5);
    struct text bytes;
    uint8_t text[36], *at;
    if (!p || !take_text(c, (int32_t)little(p, 4), &bytes)) return STRANGE;
    if (p[4] == 4 && bytes.size == 16) return put_text(w, uuid_text(text, bytes.at));
    if (p[4]) return STRANGE;
    if (w->json) return pk_json_base64(bytes, w->out);
    if (!(at = room(w->out, 5))) return FULL;
    wrote(w->out, pk_bytes_header(at, bytes.size));
    return put(w->out, bytes.at, bytes.size);
}

static int document(struct walk *w, struct cursor *c, int is_array);

static int value(struct walk *w, uint8_t type, struct cursor *c) {
    const uint8_t *p;
    struct text text;
    uint8_t digits[24];
    double number;
    uint64_t bits;
    switch (type) {
    case STRING:
        return take_string(c, &text) ? STRANGE : put_text(w, text);
    case DOCUMENT: case ARRAY:
        return document(w, c, type == ARRAY);
    case BINARY:
        return binary(w, c);
    case OBJECT_ID:
        return (p = take(c, 12)) ? put_text(w, hex_text(digits, p)) : STRANGE;
    case BOOLEAN:
        if (!(p = take(c, 1)) || *p > 1) return STRANGE;
        if (!w->json) return put8(w->out, *p ? 0xC3 : 0xC2);
        return *p ? put(w->out, "true", 4) : put(w->out, "false", 5);
    case NOTHING:
        return w->json ? put(w->out, "null", 4) : put8(w->out, 0xC0);
    case INT32:
        return (p = take(c, 4)) ? put_number(w, (int32_t)little(p, 4)) : STRANGE;
    }
    if ((type != DOUBLE && type != DATE && type != TIMESTAMP && type != INT64) ||
        !(p = take(c, 8)))
        return STRANGE;
    bits = little(p, 8);
    if (type == INT64) return put_number(w, (int64_t)bits);
    if (type == TIMESTAMP) return put_timestamp(w, p);
    if (type == DATE)
        return (int64_t)bits < YEAR_1 || (int64_t)bits >= YEAR_10000 ? STRANGE
                                                                     : put_date(w, (int64_t)bits);
    memcpy(&number, &bits, 8);
    return put_double(w, number);
}

/* A name in a document: STRANGE where it is there already, or makes it a reference. */
static int put_name(struct walk *w, struct text name, int first) {
    for (int i = first; i < w->names; i++)
        if (w->name[i].size == name.size && !memcmp(w->name[i].at, name.at, (size_t)name.size))
            return STRANGE;
    if (w->names == NAMES || is(name, "$ref")) return STRANGE;
    w->name[w->names++] = name;
    int said = put_text(w, name);
    return said || !w->json ? said : put8(w->out, ':');
}

static int document(struct walk *w, struct cursor *c, int is_array) {
    int64_t start = w->out->size, count = 0;
    int first = w->names, said;
    struct cursor in;
    struct text name;
    uint8_t type;
    if (enter(c, &in) || ++w->depth > DEEPEST) return STRANGE;
    if (put8(w->out, is_array ? '[' : '{')) return FULL;
    for (; left(&in); count++) {
        if (take_name(&in, &type, &name)) return STRANGE;
        if (w->json && count && put8(w->out, ',')) return FULL;
        if (!is_array && (said = put_name(w, name, first))) return said;
        if ((said = value(w, type, &in))) return said;
    }
    w->names = first;
    w->depth--;
    if (w->json) return put8(w->out, is_array ? ']' : '}');
    return pk_header(w->out, start, count, is_array ? pk_array_header : pk_map_header);
}

/* One event, as Python gets it: numbers. Spans are offsets in the payload (names, `session`) or in
 * what is written (all others); a start of -1: there is none. */
struct event {
    int64_t operation; /* 0 insert, 1 update, 2 replace, 3 delete; -1: Python reads it */
    int64_t database[2], collection[2], document_id[2], key[2], before[2], after[2], delta[2];
    int64_t session, transaction; /* where the 16 bytes of the session's id are; -1: none */
    int64_t has_wall, wall;       /* milliseconds */
    int64_t cluster;              /* seconds; -1: none */
};

/* The parts of an event that are read after all its names are known. */
enum { NAMESPACE, KEY, BEFORE, AFTER, UPDATE, PARTS };
static const char *const PART[PARTS] = {"ns", "documentKey", "fullDocumentBeforeChange",
                                        "fullDocument", "updateDescription"};
static const char *const OPERATION[] = {"insert", "update", "replace", "delete"};

/* A value that nobody needs: read all the same, because a broken one is Python's to report. */
static int ignore(struct walk *w, uint8_t type, struct cursor *c) {
    int64_t size = w->out->size;
    int said = value(w, type, c);
    w->out->size = size;
    return said;
}

static int operation_of(struct cursor *c, uint8_t type, struct event *e) {
    struct text text;
    if (e->operation >= 0 || type != STRING || take_string(c, &text)) return STRANGE;
    for (int i = 0; i < 4; i++)
        if (is(text, OPERATION[i])) e->operation = i;
    return e->operation < 0 ? STRANGE : FINE;
}

/* The id of a session: a UUID in `id`. */
static int session_of(struct walk *w, struct cursor *c, uint8_t type, const uint8_t *payload,
                      struct event *e) {
    struct cursor in;
    struct text name;
    const uint8_t *p;
    int said;
    if (type != DOCUMENT || e->session >= 0 || enter(c, &in)) return STRANGE;
    while (left(&in)) {
        if (take_name(&in, &type, &name)) return STRANGE;
        p = in.at;
        if (is(name, "id")) {
            if (type != BINARY || e->session >= 0 || left(&in) < 21 || little(p, 4) != 16 ||
                p[4] != 4)
                return STRANGE;
            e->session = p + 5 - payload;
        }
        if (type == BINARY && p + 5 <= in.end && p[4] != 4) { /* the user's digest */
            if (!take(&in, 5) || !take(&in, (int32_t)little(p, 4))) return STRANGE;
        } else if ((said = ignore(w, type, &in))) {
            return said;
        }
    }
    return e->session < 0 ? STRANGE : FINE;
}

static int scalar(struct walk *w, struct text name, uint8_t type, struct cursor *c,
                  const uint8_t *payload, struct event *e) {
    const uint8_t *p = c->at;
    if (is(name, "operationType")) return operation_of(c, type, e);
    if (is(name, "lsid")) return session_of(w, c, type, payload, e);
    if (is(name, "splitEvent")) return STRANGE;
    if (is(name, "wallTime")) {
        if (type != DATE || e->has_wall || !take(c, 8)) return STRANGE;
        e->has_wall = 1;
        e->wall = (int64_t)little(p, 8);
        return e->wall < YEAR_1 || e->wall >= YEAR_10000 ? STRANGE : FINE;
    }
    if (is(name, "clusterTime")) {
        if (type != TIMESTAMP || e->cluster >= 0 || !take(c, 8)) return STRANGE;
        e->cluster = (int64_t)little(p + 4, 4);
        return FINE;
    }
    if (is(name, "txnNumber")) {
        if (type != INT64 || e->transaction >= 0 || !take(c, 8)) return STRANGE;
        e->transaction = (int64_t)little(p, 8);
        return e->transaction < 0 ? STRANGE : FINE;
    }
    return ignore(w, type, c);
}

static int names_of(struct cursor c, const uint8_t *payload, struct event *e) {
    struct cursor in;
    struct text name, text;
    uint8_t type;
    if (enter(&c, &in)) return STRANGE;
    while (left(&in)) {
        int64_t *span;
        if (take_name(&in, &type, &name) || type != STRING || take_string(&in, &text))
            return STRANGE;
        span = is(name, "db") ? e->database : is(name, "coll") ? e->collection : NULL;
        if (!span || span[0] >= 0) return STRANGE;
        span[0] = text.at - payload;
        span[1] = span[0] + text.size;
    }
    return FINE;
}

/* A value of a document's key: its text, and with its type in `w`. */
static int put_key(struct walk *w, uint8_t type, struct cursor *in, uint8_t *room_for, struct text *text) {
    const uint8_t *p = in->at;
    const char *form = NULL;
    int64_t number = 0;
    int said;
    if (type == STRING) {
        if (take_string(in, text)) return STRANGE;
    } else if (type == OBJECT_ID && take(in, 12)) {
        *text = hex_text(room_for, p);
        form = "$oid";
    } else if (type == BINARY && left(in) >= 21 && little(p, 4) == 16 && p[4] == 4) {
        in->at += 21;
        *text = uuid_text(room_for, p + 5);
        form = "$uuid";
    } else if ((type == INT32 && take(in, 4)) || (type == INT64 && take(in, 8))) {
        number = type == INT32 ? (int32_t)little(p, 4) : (int64_t)little(p, 8);
        if (number > SAFE || number < -SAFE) return STRANGE;
        *text = (struct text){room_for, decimal(room_for, number) - room_for};
    } else {
        return STRANGE;
    }
    if (form && (said = put_single(w, form))) return said;
    said = type == INT32 || type == INT64 ? put_number(w, number) : put_text(w, *text);
    return said || !form ? said : put_end(w);
}

/* The key with its types, and then the `_id` as text. */
static int identify(struct walk *w, struct cursor c, struct event *e) {
    struct cursor in;
    struct text name, text, id = {0};
    uint8_t type, known[40], other[40];
    int64_t count = 0;
    int said;
    if (enter(&c, &in) || !left(&in)) return STRANGE;
    e->key[0] = w->out->size;
    if (put8(w->out, '{')) return FULL;
    for (; left(&in); count++) {
        if (take_name(&in, &type, &name)) return STRANGE;
        int is_id = is(name, "_id");
        if (w->json && count && put8(w->out, ',')) return FULL;
        if ((said = put_name(w, name, 0))) return said;
        if ((said = put_key(w, type, &in, is_id ? known : other, is_id ? &id : &text))) return said;
    }
    if (!id.at) return STRANGE;
    w->names = 0;
    said = w->json ? put8(w->out, '}') : pk_header(w->out, e->key[0], count, pk_map_header);
    e->key[1] = e->document_id[0] = w->out->size;
    if (said || put(w->out, id.at, id.size)) return FULL;
    e->document_id[1] = w->out->size;
    return FINE;
}

static int image(struct walk *w, struct element *part, int64_t *span) {
    int said;
    if (part->type == NOTHING || !part->type) return FINE;
    if (part->type != DOCUMENT) return STRANGE;
    span[0] = w->out->size;
    said = document(w, &part->value, 0);
    span[1] = w->out->size;
    return said;
}

/* One member of a change's delta; `found` has no type where the event has none. */
static int member(struct walk *w, const char *name, struct element *found, int is_array) {
    int said = put_word(w, name);
    if (said || (w->json && put8(w->out, ':'))) return said ? said : FULL;
    if (found->type) return document(w, &found->value, is_array);
    if (w->json) return put(w->out, is_array ? "[]" : "{}", 2);
    return put8(w->out, is_array ? 0x90 : 0x80);
}

static int delta(struct walk *w, struct element *part, int64_t *span) {
    struct element updated = {0}, removed = {0}, *found;
    struct cursor in, names, inside;
    struct text name, text;
    uint8_t type;
    int said;
    if (part->type == NOTHING || !part->type) return FINE;
    if (part->type != DOCUMENT || enter(&part->value, &in)) return STRANGE;
    while (left(&in)) {
        if (take_name(&in, &type, &name)) return STRANGE;
        found = is(name, "updatedFields") ? &updated : is(name, "removedFields") ? &removed : NULL;
        if (!found) {
            inside = in;
            if (is(name, "truncatedArrays") && (type != ARRAY || enter(&inside, &names) || left(&names)))
                return STRANGE;
            if ((said = ignore(w, type, &in))) return said;
            continue;
        }
        if (found->type || type != (found == &updated ? DOCUMENT : ARRAY)) return STRANGE;
        *found = (struct element){type, name, in};
        if (enter(&in, &names)) return STRANGE;
        while (found == &removed && left(&names))
            if (take_name(&names, &type, &name) || type != STRING || take_string(&names, &text))
                return STRANGE;
    }
    span[0] = w->out->size;
    if (put8(w->out, w->json ? '{' : 0x83)) return FULL;
    if ((said = member(w, "updated", &updated, 0)) || (w->json && (said = put8(w->out, ','))))
        return said;
    if ((said = member(w, "removed", &removed, 1)) || (w->json && (said = put8(w->out, ','))))
        return said;
    updated.type = 0;
    if ((said = member(w, "truncated", &updated, 1)) || (said = put_end(w))) return said;
    span[1] = w->out->size;
    return FINE;
}

static int read_event(struct walk *w, struct cursor c, const uint8_t *payload, struct event *e) {
    struct element part[PARTS] = {{0}};
    struct cursor in;
    struct text name;
    uint8_t type;
    int said, i;
    if (enter(&c, &in) || left(&c)) return STRANGE;
    while (left(&in)) {
        if (take_name(&in, &type, &name)) return STRANGE;
        for (i = 0; i < PARTS && !is(name, PART[i]);) i++;
        if (i == PARTS) {
            if ((said = scalar(w, name, type, &in, payload, e))) return said;
            continue;
        }
        if (part[i].type || (type != DOCUMENT && type != NOTHING)) return STRANGE;
        part[i] = (struct element){type, name, in};
        if (type == DOCUMENT && enter(&in, &(struct cursor){0})) return STRANGE;
    }
    if (e->operation < 0 || part[NAMESPACE].type != DOCUMENT || part[KEY].type != DOCUMENT)
        return STRANGE;
    if (names_of(part[NAMESPACE].value, payload, e)) return STRANGE;
    if ((said = identify(w, part[KEY].value, e))) return said;
    if ((said = image(w, &part[BEFORE], e->before))) return said;
    if ((said = image(w, &part[AFTER], e->after))) return said;
    return delta(w, &part[UPDATE], e->delta);
}

/* Reads the documents of a page that are at `spans` (start and stop of each). What was written is in
 * `out`, which the caller frees. FULL: there is not enough memory. */
EXPORT int32_t penstock_bson_read(const uint8_t *payload, const int64_t *spans, int64_t count,
                                  int32_t json, struct event *found, struct buffer *out);
EXPORT void penstock_bson_free(struct buffer *out);

int32_t penstock_bson_read(const uint8_t *payload, const int64_t *spans, int64_t count,
                           int32_t json, struct event *found, struct buffer *out) {
    struct walk w;
    for (int64_t i = 0; i < count; i++) {
        struct cursor c = {payload + spans[2 * i], payload + spans[2 * i + 1]};
        int64_t size = out->size;
        int said;
        memset(found + i, 0xFF, sizeof *found); /* -1: nothing is there */
        found[i].has_wall = 0;
        w.out = out, w.json = json, w.depth = w.names = 0;
        said = read_event(&w, c, payload, found + i);
        if (said == FULL) return FULL;
        if (said) found[i].operation = -1, out->size = size;
    }
    return FINE;
}

void penstock_bson_free(struct buffer *out) {
    free(out->data);
    *out = (struct buffer){0};
}
