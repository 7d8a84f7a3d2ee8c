/* The walk over a page's CopyData messages: begins, commits and rows. Everything else stops it, and
 * is Python's: relations, truncates, logical messages, and every row that is STRANGE. */
#include "native.h"
#include "page.h"

/* XLogData: `w`, two LSNs and a time. Then the message. */
#define HEADER 25
#define KEEPALIVE 18
#define BEGIN 21
#define COMMIT 26
#define PG_EPOCH_US INT64_C(946684800000000)

/* What `penstock_page_run` answers. */
enum { DONE, MESSAGE, BROKEN, NO_ROOM };

EXPORT struct page *penstock_page_new(const struct setup *setup);
EXPORT void penstock_page_free(struct page *page);
EXPORT int32_t penstock_page_run(struct page *page);
EXPORT int32_t penstock_page_relation(struct page *page, const struct plan *plan, int32_t index);
EXPORT int32_t penstock_page_unit(struct page *page, const struct unit *unit);
EXPORT int32_t penstock_page_row(struct page *page, const struct given *row);

/* Arrow's offsets begin with the first start. */
static int start_texts(struct page *page) {
    const int32_t zero = 0;
    struct buffer *all[] = {
        &page->document_id.ends, &page->key.ends,       &page->before.ends,   &page->after.ends,
        &page->tenant.ends,      &page->unchanged.ends, &page->unchanged_ends};
    int failed = FINE;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) failed |= put(all[i], &zero, sizeof zero);
    /* About what the images will need: growing in steps would copy them. */
    return failed | (room(&page->after.data, page->setup.payload.size) ? FINE : FULL);
}

struct page *penstock_page_new(const struct setup *setup) {
    struct page *page = calloc(1, sizeof *page);
    const struct plan *none = NULL;
    int failed;
    if (!page) return NULL;
    page->setup = *setup;
    page->style.json = setup->json;
    page->state.unit = NO_UNIT;
    failed = put(&page->plans, &none, sizeof none) | start_texts(page);
    if (!failed) return page;
    penstock_page_free(page);
    return NULL;
}

int pk_add_unit(struct page *page, struct unit unit) {
    if (put(&page->units, &unit, sizeof unit)) return FULL;
    page->state.units++;
    page->state.all_units = (const struct unit *)page->units.data;
    return FINE;
}

int32_t penstock_page_unit(struct page *page, const struct unit *unit) {
    return pk_add_unit(page, *unit);
}

static struct relation *slot(struct relation *table, int32_t capacity, uint32_t oid) {
    uint32_t at = oid * 2654435761U, mask = (uint32_t)capacity - 1;
    while (table[at & mask].used && table[at & mask].oid != oid) at++;
    return &table[at & mask];
}

static int more_relations(struct page *page) {
    int32_t old = page->relation_capacity, capacity = old ? old * 2 : 16;
    struct relation *table = calloc((size_t)capacity, sizeof *table);
    if (!table) return FULL;
    for (int32_t i = 0; i < old; i++)
        if (page->relations[i].used)
            *slot(table, capacity, page->relations[i].oid) = page->relations[i];
    free(page->relations);
    page->relations = table;
    page->relation_capacity = capacity;
    return FINE;
}

/* A relation as it is from now on. Indexes are given in turn, from 1. */
int32_t penstock_page_relation(struct page *page, const struct plan *plan, int32_t index) {
    struct relation *found;
    if (page->relation_count * 2 >= page->relation_capacity && more_relations(page)) return FULL;
    found = slot(page->relations, page->relation_capacity, (uint32_t)plan->oid);
    page->relation_count += !found->used;
    *found = (struct relation){(uint32_t)plan->oid, index, 1, plan};
    return index == FILTERED ? FINE : put(&page->plans, &plan, sizeof plan);
}

void pk_seen(struct page *page, int32_t unit, int32_t ordinal) {
    struct state *s = &page->state;
    if (!s->seen++) s->first[0] = unit, s->first[1] = ordinal;
    s->last[0] = unit;
    s->last[1] = ordinal;
}

static int give(struct texts *texts, int32_t row, struct text text) {
    return (text.at ? put(&texts->data, text.at, text.size) : FINE) |
           pk_end_text(texts, row, text.at != NULL);
}

int32_t penstock_page_row(struct page *page, const struct given *g) {
    struct row row = {g->unit, g->relation, g->ordinal, g->operation, -1, 0};
    int32_t at = page->state.rows;
    int failed = FINE;
    pk_seen(page, g->unit, g->ordinal);
    if (g->relation == FILTERED) return FINE;
    if (g->collection.at) {
        row.collection = (int32_t)page->collections.size;
        row.collection_size = (int32_t)g->collection.size;
        failed |= put(&page->collections, g->collection.at, g->collection.size);
    }
    for (int32_t i = 0; i < g->unchanged_count && !failed; i++) {
        int32_t end;
        failed |= put(&page->unchanged.data, g->unchanged[i].at, g->unchanged[i].size);
        end = (int32_t)page->unchanged.data.size;
        failed |= put(&page->unchanged.ends, &end, 4);
    }
    return failed | give(&page->document_id, at, g->document_id) | give(&page->key, at, g->key) |
           give(&page->before, at, g->before) | give(&page->after, at, g->after) |
           give(&page->tenant, at, g->tenant) | pk_end_row(page, row);
}

static int begin(struct page *page, struct cursor c) {
    struct state *s = &page->state;
    const uint8_t *p = take(&c, BEGIN - 1);
    int64_t time;
    if (!p || left(&c) || s->unit != NO_UNIT || page->setup.streamed) return MESSAGE;
    time = (int64_t)big64(p + 8);
    if (time > INT64_MAX - PG_EPOCH_US) return MESSAGE;
    if (pk_add_unit(page, (struct unit){big64(p), time + PG_EPOCH_US, big32(p + 16), 1}))
        return NO_ROOM;
    s->commit_lsn = big64(p);
    s->unit = s->units - 1;
    s->ordinal = 0;
    return DONE;
}

static int commit(struct page *page, struct cursor c) {
    struct state *s = &page->state;
    const uint8_t *p = take(&c, COMMIT - 1);
    if (!p || left(&c) || s->unit == NO_UNIT || big64(p + 1) != s->commit_lsn) return MESSAGE;
    s->unit = NO_UNIT;
    return DONE;
}

static int row(struct page *page, uint8_t tag, struct cursor c) {
    struct state *s = &page->state;
    const struct relation *found;
    uint32_t oid, xid;
    int failed;
    if (page->setup.streamed && !take32(&c, &xid)) return MESSAGE;
    if (!take32(&c, &oid) || s->unit == NO_UNIT || !page->relations) return MESSAGE;
    found = slot(page->relations, page->relation_capacity, oid);
    if (!found->used || s->ordinal == INT32_MAX || s->rows == INT32_MAX) return MESSAGE;
    if (found->index != FILTERED) {
        failed = pk_row(page, found, tag, c);
        if (failed) return failed == FULL ? NO_ROOM : MESSAGE;
    }
    pk_seen(page, s->unit, s->ordinal++);
    return DONE;
}

static int message(struct page *page, struct cursor c) {
    uint8_t tag;
    if (!take8(&c, &tag)) return MESSAGE;
    switch (tag) {
    case 'B': return begin(page, c);
    case 'C': return commit(page, c);
    case 'I': case 'U': case 'D': return row(page, tag, c);
    default: return MESSAGE;
    }
}

/* One CopyData message: where it ends, and what is in it. */
static int frame(struct page *page, struct cursor *c) {
    struct cursor inside;
    struct text body;
    uint32_t size;
    uint8_t copy, kind;
    if (!take8(c, &copy) || copy != 'd' || !take32(c, &size) || size < 4) return BROKEN;
    if (!take_text(c, (int64_t)size - 4, &body)) return BROKEN;
    page->state.stop = c->at - page->setup.payload.at;
    inside = (struct cursor){body.at, body.at + body.size};
    if (!take8(&inside, &kind)) return BROKEN;
    if (kind == 'k') return body.size == KEEPALIVE ? DONE : BROKEN;
    if (kind != 'w' || !take(&inside, HEADER - 1)) return BROKEN;
    return message(page, inside);
}

/* Goes on at `state.at`, up to the payload's end (DONE), a message for Python (from `at` to `stop`;
 * nothing of it was written), or bytes that are no message (BROKEN). */
int32_t penstock_page_run(struct page *page) {
    struct text payload = page->setup.payload;
    struct cursor c = {payload.at, payload.at + payload.size};
    if (!take(&c, page->state.at)) return BROKEN;
    while (c.at < c.end) {
        int failed = frame(page, &c);
        if (failed != DONE) return failed;
        page->state.at = c.at - payload.at;
    }
    return DONE;
}

static void free_texts(struct texts *texts) {
    free(texts->data.data);
    free(texts->ends.data);
    free(texts->valid.data);
}

void penstock_page_free(struct page *page) {
    struct texts *all[] = {&page->document_id, &page->key,    &page->before,
                           &page->after,       &page->tenant, &page->unchanged};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) free_texts(all[i]);
    free(page->rows.data);
    free(page->units.data);
    free(page->plans.data);
    free(page->collections.data);
    free(page->unchanged_ends.data);
    free(page->style.scratch.data);
    free(page->relations);
    free(page->cells[OLD]);
    free(page->cells[NEW]);
    free(page);
}
