/* Change events of MongoDB -> the values of changes, and their images as JSON or MessagePack.
 *
 * It makes what penstock/wire/changestream/changes.py makes, of the ordinary types. An event with
 * anything else in it, or that is broken anywhere, is STRANGE: Python reads it. */
#include "bson.h"
#include "messagepack.h"
#include "native.h"

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
    int failed = bson_value(w, type, c);
    w->out->size = size;
    return failed;
}

static int operation_of(struct cursor *c, uint8_t type, struct event *e) {
    struct text text;
    if (e->operation >= 0 || type != STRING || bson_take_string(c, &text)) return STRANGE;
    for (int i = 0; i < 4; i++)
        if (bson_is(text, OPERATION[i])) e->operation = i;
    return e->operation < 0 ? STRANGE : FINE;
}

/* The id of a session: a UUID in `id`. */
static int session_of(struct walk *w, struct cursor *c, uint8_t type, const uint8_t *payload,
                      struct event *e) {
    struct cursor in;
    struct text name;
    const uint8_t *p;
    int failed;
    if (type != DOCUMENT || e->session >= 0 || bson_enter(c, &in)) return STRANGE;
    while (left(&in)) {
        if (bson_take_name(&in, &type, &name)) return STRANGE;
        p = in.at;
        if (bson_is(name, "id")) {
            if (type != BINARY || e->session >= 0 || left(&in) < 21 || bson_little(p, 4) != 16 ||
                p[4] != 4)
                return STRANGE;
            e->session = p + 5 - payload;
        }
        if (type == BINARY && p + 5 <= in.end && p[4] != 4) { /* the user's digest */
            if (!take(&in, 5) || !take(&in, (int32_t)bson_little(p, 4))) return STRANGE;
        } else if ((failed = ignore(w, type, &in))) {
            return failed;
        }
    }
    return e->session < 0 ? STRANGE : FINE;
}

static int scalar(struct walk *w, struct text name, uint8_t type, struct cursor *c,
                  const uint8_t *payload, struct event *e) {
    const uint8_t *p = c->at;
    if (bson_is(name, "operationType")) return operation_of(c, type, e);
    if (bson_is(name, "lsid")) return session_of(w, c, type, payload, e);
    if (bson_is(name, "splitEvent")) return STRANGE;
    if (bson_is(name, "wallTime")) {
        if (type != DATE || e->has_wall || !take(c, 8)) return STRANGE;
        e->has_wall = 1;
        e->wall = (int64_t)bson_little(p, 8);
        return e->wall < YEAR_1 || e->wall >= YEAR_10000 ? STRANGE : FINE;
    }
    if (bson_is(name, "clusterTime")) {
        if (type != TIMESTAMP || e->cluster >= 0 || !take(c, 8)) return STRANGE;
        e->cluster = (int64_t)bson_little(p + 4, 4);
        return FINE;
    }
    if (bson_is(name, "txnNumber")) {
        if (type != INT64 || e->transaction >= 0 || !take(c, 8)) return STRANGE;
        e->transaction = (int64_t)bson_little(p, 8);
        return e->transaction < 0 ? STRANGE : FINE;
    }
    return ignore(w, type, c);
}

static int names_of(struct cursor c, const uint8_t *payload, struct event *e) {
    struct cursor in;
    struct text name, text;
    uint8_t type;
    if (bson_enter(&c, &in)) return STRANGE;
    while (left(&in)) {
        int64_t *span;
        if (bson_take_name(&in, &type, &name) || type != STRING || bson_take_string(&in, &text))
            return STRANGE;
        span = bson_is(name, "db") ? e->database : bson_is(name, "coll") ? e->collection : NULL;
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
    int failed;
    if (type == STRING) {
        if (bson_take_string(in, text)) return STRANGE;
    } else if (type == OBJECT_ID && take(in, 12)) {
        *text = bson_hex_text(room_for, p);
        form = "$oid";
    } else if (type == BINARY && left(in) >= 21 && bson_little(p, 4) == 16 && p[4] == 4) {
        in->at += 21;
        *text = bson_uuid_text(room_for, p + 5);
        form = "$uuid";
    } else if ((type == INT32 && take(in, 4)) || (type == INT64 && take(in, 8))) {
        number = type == INT32 ? (int32_t)bson_little(p, 4) : (int64_t)bson_little(p, 8);
        if (number > SAFE || number < -SAFE) return STRANGE;
        *text = (struct text){room_for, bson_decimal(room_for, number) - room_for};
    } else {
        return STRANGE;
    }
    if (form && (failed = bson_put_single(w, form))) return failed;
    failed = type == INT32 || type == INT64 ? bson_put_number(w, number) : bson_put_text(w, *text);
    return failed || !form ? failed : bson_put_end(w);
}

/* The key with its types, and then the `_id` as text. */
static int identify(struct walk *w, struct cursor c, struct event *e) {
    struct cursor in;
    struct text name, text, id = {0};
    uint8_t type, known[40], other[40];
    int64_t count = 0;
    int failed;
    if (bson_enter(&c, &in) || !left(&in)) return STRANGE;
    e->key[0] = w->out->size;
    if (put8(w->out, '{')) return FULL;
    for (; left(&in); count++) {
        if (bson_take_name(&in, &type, &name)) return STRANGE;
        int is_id = bson_is(name, "_id");
        if (w->json && count && put8(w->out, ',')) return FULL;
        if ((failed = bson_put_name(w, name, 0))) return failed;
        if ((failed = put_key(w, type, &in, is_id ? known : other, is_id ? &id : &text))) return failed;
    }
    if (!id.at) return STRANGE;
    w->names = 0;
    failed = w->json ? put8(w->out, '}') : pk_header(w->out, e->key[0], count, pk_map_header);
    e->key[1] = e->document_id[0] = w->out->size;
    if (failed || put(w->out, id.at, id.size)) return FULL;
    e->document_id[1] = w->out->size;
    return FINE;
}

static int image(struct walk *w, struct element *part, int64_t *span) {
    int failed;
    if (part->type == NOTHING || !part->type) return FINE;
    if (part->type != DOCUMENT) return STRANGE;
    span[0] = w->out->size;
    failed = bson_document(w, &part->value, 0);
    span[1] = w->out->size;
    return failed;
}

/* One member of a change's delta; `found` has no type where the event has none. */
static int member(struct walk *w, const char *name, struct element *found, int is_array) {
    int failed = bson_put_word(w, name);
    if (failed || (w->json && put8(w->out, ':'))) return failed ? failed : FULL;
    if (found->type) return bson_document(w, &found->value, is_array);
    if (w->json) return put(w->out, is_array ? "[]" : "{}", 2);
    return put8(w->out, is_array ? 0x90 : 0x80);
}

static int delta(struct walk *w, struct element *part, int64_t *span) {
    struct element updated = {0}, removed = {0}, *found;
    struct cursor in, names, inside;
    struct text name, text;
    uint8_t type;
    int failed;
    if (part->type == NOTHING || !part->type) return FINE;
    if (part->type != DOCUMENT || bson_enter(&part->value, &in)) return STRANGE;
    while (left(&in)) {
        if (bson_take_name(&in, &type, &name)) return STRANGE;
        found = bson_is(name, "updatedFields") ? &updated : bson_is(name, "removedFields") ? &removed : NULL;
        if (!found) {
            inside = in;
            if (bson_is(name, "truncatedArrays") && (type != ARRAY || bson_enter(&inside, &names) || left(&names)))
                return STRANGE;
            if (bson_is(name, "disambiguatedPaths") && (type != DOCUMENT || bson_enter(&inside, &names) || left(&names)))
                return STRANGE;
            if ((failed = ignore(w, type, &in))) return failed;
            continue;
        }
        if (found->type || type != (found == &updated ? DOCUMENT : ARRAY)) return STRANGE;
        *found = (struct element){type, name, in};
        if (bson_enter(&in, &names)) return STRANGE;
        while (found == &removed && left(&names))
            if (bson_take_name(&names, &type, &name) || type != STRING || bson_take_string(&names, &text))
                return STRANGE;
    }
    span[0] = w->out->size;
    if (put8(w->out, w->json ? '{' : 0x83)) return FULL;
    if ((failed = member(w, "updated", &updated, 0)) || (w->json && (failed = put8(w->out, ','))))
        return failed;
    if ((failed = member(w, "removed", &removed, 1)) || (w->json && (failed = put8(w->out, ','))))
        return failed;
    updated.type = 0;
    if ((failed = member(w, "truncated", &updated, 1)) || (failed = bson_put_end(w))) return failed;
    span[1] = w->out->size;
    return FINE;
}

static int read_event(struct walk *w, struct cursor c, const uint8_t *payload, struct event *e) {
    struct element part[PARTS] = {{0}};
    struct cursor in;
    struct text name;
    uint8_t type;
    int failed, i;
    if (bson_enter(&c, &in) || left(&c)) return STRANGE;
    while (left(&in)) {
        if (bson_take_name(&in, &type, &name)) return STRANGE;
        for (i = 0; i < PARTS && !bson_is(name, PART[i]);) i++;
        if (i == PARTS) {
            if ((failed = scalar(w, name, type, &in, payload, e))) return failed;
            continue;
        }
        if (part[i].type || (type != DOCUMENT && type != NOTHING)) return STRANGE;
        part[i] = (struct element){type, name, in};
        if (type == DOCUMENT && bson_enter(&in, &(struct cursor){0})) return STRANGE;
    }
    if (e->operation < 0 || part[NAMESPACE].type != DOCUMENT || part[KEY].type != DOCUMENT)
        return STRANGE;
    if (names_of(part[NAMESPACE].value, payload, e)) return STRANGE;
    if ((failed = identify(w, part[KEY].value, e))) return failed;
    if ((failed = image(w, &part[BEFORE], e->before))) return failed;
    if ((failed = image(w, &part[AFTER], e->after))) return failed;
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
        int failed;
        memset(found + i, 0xFF, sizeof *found); /* -1: nothing is there */
        found[i].has_wall = 0;
        w.out = out, w.json = json, w.depth = w.names = 0;
        failed = read_event(&w, c, payload, found + i);
        if (failed == FULL) return FULL;
        if (failed) found[i].operation = -1, out->size = size;
    }
    return FINE;
}

void penstock_bson_free(struct buffer *out) {
    free(out->data);
    *out = (struct buffer){0};
}
