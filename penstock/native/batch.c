/* A page's changes as one Arrow record batch of `penstock.model.change.schema`, column by column, handed
 * over through the C data interface: nothing is copied, and its consumer frees it. */
#include <stdatomic.h>
#include <stdio.h>

#include "arrow.h"
#include "native.h"
#include "number.h"
#include "page.h"

int32_t penstock_page_export(struct page *page, struct ArrowArray *out);
void penstock_page_keep(struct ArrowArray *batch, void *memory);

enum { COLUMNS = 23, CURSOR = 17, KEPT = 2 };

/* Everything that a batch consists of; freed when the last of its arrays is. */
struct holder {
    atomic_int arrays;
    struct ArrowArray column[COLUMNS], names;
    struct ArrowArray *columns[COLUMNS], *names_of[1];
    const void *buffers[COLUMNS + 2][3];
    void *owned[COLUMNS * 3 + KEPT];
    int owned_count;
};

struct build {
    struct page *page;
    struct holder *holder;
    int64_t rows;
    int column, failed;
};

static void release(struct ArrowArray *array) {
    struct holder *h = array->private_data;
    for (int64_t i = 0; i < array->n_children; i++)
        if (array->children[i]->release) array->children[i]->release(array->children[i]);
    array->release = NULL;
    if (atomic_fetch_sub(&h->arrays, 1) > 1) return;
    while (h->owned_count) free(h->owned[--h->owned_count]);
    free(h);
}

static void init(struct holder *h, struct ArrowArray *a, int64_t length, int64_t buffers, int which) {
    *a = (struct ArrowArray){.length = length, .n_buffers = buffers, .buffers = h->buffers[which],
                             .release = release, .private_data = h};
    atomic_fetch_add(&h->arrays, 1);
}

/* The buffer's memory is the batch's now. */
static const void *own(struct holder *h, struct buffer *b) {
    void *data = b->data;
    *b = (struct buffer){0};
    h->owned[h->owned_count++] = data;
    return data;
}

static struct ArrowArray *next(struct build *b, int64_t buffers) {
    struct ArrowArray *array = &b->holder->column[b->column];
    init(b->holder, array, b->rows, buffers, b->column);
    b->holder->columns[b->column] = array;
    b->column++;
    return array;
}

static struct buffer sized(struct build *b, int64_t size) {
    struct buffer made = {0};
    if (!room(&made, size ? size : 1)) b->failed |= FULL;
    return made;
}

static const struct row *rows_of(const struct build *b) {
    return (const struct row *)b->page->rows.data;
}

static const struct unit *unit_of(const struct build *b, int64_t row) {
    return (const struct unit *)b->page->units.data + rows_of(b)[row].unit;
}

static const struct plan *plan_of(const struct build *b, int64_t row) {
    return ((const struct plan **)b->page->plans.data)[rows_of(b)[row].relation];
}

/* Which text a row has; a null one has no address. `space` is for texts that are made. */
typedef struct text (*chooser)(const struct build *b, int64_t row, uint8_t *space);

static struct text backend(const struct build *b, int64_t row, uint8_t *space) {
    return (void)row, (void)space, b->page->setup.backend;
}

static struct text partition(const struct build *b, int64_t row, uint8_t *space) {
    return (void)row, (void)space, b->page->setup.partition;
}

static struct text database(const struct build *b, int64_t row, uint8_t *space) {
    return (void)row, (void)space, b->page->setup.database;
}

static struct text tenant(const struct build *b, int64_t row, uint8_t *space) {
    return (void)row, (void)space, b->page->setup.tenant;
}

static struct text mark(const struct build *b, int64_t row, uint8_t *space) {
    return (void)row, (void)space, b->page->setup.mark;
}

static struct text operation(const struct build *b, int64_t row, uint8_t *space) {
    return (void)space, b->page->setup.operations[rows_of(b)[row].operation];
}

static struct text namespace(const struct build *b, int64_t row, uint8_t *space) {
    const struct plan *plan = plan_of(b, row);
    return (void)space, plan ? plan->namespace : (struct text){0};
}

static struct text version(const struct build *b, int64_t row, uint8_t *space) {
    const struct plan *plan = plan_of(b, row);
    return (void)space, plan ? plan->version : (struct text){0};
}

/* A relation's description, for the first change of its rows (or TRUNCATE): no later column asks for
 * its plan. */
static struct text description(const struct build *b, int64_t row, uint8_t *space) {
    const struct row *r = &rows_of(b)[row];
    const struct plan **plan = (const struct plan **)b->page->plans.data + r->relation;
    struct text found = {0};
    (void)space;
    if (!*plan || r->operation > 3) return found;
    found = (*plan)->description;
    *plan = NULL;
    return found;
}

static struct text collection(const struct build *b, int64_t row, uint8_t *space) {
    const struct row *r = &rows_of(b)[row];
    const struct plan *plan = plan_of(b, row);
    (void)space;
    if (plan) return plan->name;
    if (r->collection < 0) return (struct text){0};
    return (struct text){b->page->collections.data + r->collection, r->collection_size};
}

static uint8_t *write_cursor(uint8_t *at, uint64_t lsn) {
    for (int shift = 60; shift >= 0; shift -= 4) {
        *at++ = (uint8_t)"0123456789ABCDEF"[lsn >> shift & 15];
        if (shift == 32) *at++ = '/';
    }
    return at;
}

static struct text cursor(const struct build *b, int64_t row, uint8_t *space) {
    write_cursor(space, unit_of(b, row)->lsn);
    return (struct text){space, CURSOR};
}

static struct text transaction(const struct build *b, int64_t row, uint8_t *space) {
    const struct unit *unit = unit_of(b, row);
    if (!unit->inside) return (struct text){0};
    return (struct text){space, pk_digits(space, unit->xid) - space};
}

/* What follows the setup's `events:`. */
static struct text event(const struct build *b, int64_t row, uint8_t *space) {
    uint8_t *at = write_cursor(space, unit_of(b, row)->lsn);
    *at++ = ':';
    return (struct text){space, pk_digits(at, (uint64_t)rows_of(b)[row].ordinal) - space};
}

static void set_null(struct build *b, struct ArrowArray *array, struct buffer *valid, int64_t row) {
    if (!valid->data) {
        int64_t size = (b->rows + 7) / 8;
        *valid = sized(b, size);
        if (!valid->data) return;
        memset(valid->data, 0xFF, (size_t)size);
    }
    valid->data[row / 8] &= (uint8_t) ~(1 << row % 8);
    array->null_count++;
}

/* A column of texts, each after `prefix`. */
static void texts(struct build *b, chooser choose, struct text prefix) {
    uint8_t space[48];
    struct ArrowArray *array = next(b, 3);
    struct buffer ends = sized(b, 4 * (b->rows + 1)), data = sized(b, 16 * b->rows), valid = {0};
    for (int64_t i = 0; i < b->rows && !b->failed; i++) {
        struct text text = choose(b, i, space);
        int32_t start = (int32_t)data.size;
        uint8_t *at;
        memcpy(ends.data + 4 * i, &start, 4);
        if (!text.at) {
            set_null(b, array, &valid, i);
            continue;
        }
        if (!(at = room(&data, prefix.size + text.size))) {
            b->failed |= FULL;
            break;
        }
        if (prefix.size) memcpy(at, prefix.at, (size_t)prefix.size);
        memcpy(at + prefix.size, text.at, (size_t)text.size);
        data.size += prefix.size + text.size;
    }
    if (!b->failed) {
        int32_t end = (int32_t)data.size;
        memcpy(ends.data + 4 * b->rows, &end, 4);
    }
    array->buffers[0] = own(b->holder, &valid);
    array->buffers[1] = own(b->holder, &ends);
    array->buffers[2] = own(b->holder, &data);
}

/* A column of texts that was written row by row. */
static void written(struct build *b, struct texts *t) {
    struct ArrowArray *array = next(b, 3);
    array->null_count = t->nulls;
    array->buffers[0] = t->nulls ? own(b->holder, &t->valid) : NULL;
    array->buffers[1] = own(b->holder, &t->ends);
    if (!room(&t->data, 1)) b->failed |= FULL;
    array->buffers[2] = own(b->holder, &t->data);
}

typedef int (*number)(const struct build *b, int64_t row, int64_t *value);

static int relation_id(const struct build *b, int64_t row, int64_t *value) {
    const struct plan *plan = plan_of(b, row);
    *value = plan ? plan->oid : 0;
    return plan != NULL;
}

static int committed_at(const struct build *b, int64_t row, int64_t *value) {
    const struct unit *unit = unit_of(b, row);
    *value = unit->inside ? unit->committed_at : 0;
    return unit->inside;
}

static int captured_at(const struct build *b, int64_t row, int64_t *value) {
    (void)row;
    *value = b->page->setup.captured_at;
    return 1;
}

static void numbers(struct build *b, number choose) {
    struct ArrowArray *array = next(b, 2);
    struct buffer data = sized(b, 8 * b->rows), valid = {0};
    for (int64_t i = 0; i < b->rows && !b->failed; i++) {
        int64_t value;
        if (!choose(b, i, &value)) set_null(b, array, &valid, i);
        memcpy(data.data + 8 * i, &value, 8);
    }
    array->buffers[0] = own(b->holder, &valid);
    array->buffers[1] = own(b->holder, &data);
}

static void ordinals(struct build *b) {
    struct ArrowArray *array = next(b, 2);
    struct buffer data = sized(b, 4 * b->rows);
    for (int64_t i = 0; i < b->rows && !b->failed; i++)
        memcpy(data.data + 4 * i, &rows_of(b)[i].ordinal, 4);
    array->buffers[1] = own(b->holder, &data);
}

static void unchanged(struct build *b) {
    struct page *p = b->page;
    struct holder *h = b->holder;
    struct ArrowArray *array = next(b, 2);
    int64_t names = p->unchanged.ends.size / 4 - 1;
    array->buffers[1] = own(h, &p->unchanged_ends);
    init(h, &h->names, names, 3, COLUMNS);
    h->names_of[0] = &h->names;
    array->n_children = 1;
    array->children = h->names_of;
    if (!room(&p->unchanged.data, 1)) b->failed |= FULL;
    h->names.buffers[1] = own(h, &p->unchanged.ends);
    h->names.buffers[2] = own(h, &p->unchanged.data);
}

/* A column of `buffers` buffers in which every row is null: zeros serve as its bitmap, its offsets
 * and its numbers, and all such columns share them. */
static void nulls(struct build *b, const void *zeros, int64_t buffers) {
    struct ArrowArray *array = next(b, buffers);
    array->null_count = b->rows;
    for (int64_t i = 0; i < buffers; i++) array->buffers[i] = zeros;
}

static void columns(struct build *b) {
    static const struct text nothing = {(const uint8_t *)"", 0};
    struct page *p = b->page;
    struct buffer start = {0};
    struct text prefix = nothing;
    if (put(&start, p->setup.events.at, p->setup.events.size) || put8(&start, ':')) b->failed = FULL;
    else prefix = (struct text){start.data, start.size};
    texts(b, backend, nothing);
    texts(b, partition, nothing);
    texts(b, cursor, nothing);
    ordinals(b);
    texts(b, event, prefix);
    texts(b, operation, nothing);
    if (p->setup.tenant_rule == TENANT_FIELD) written(b, &p->tenant);
    else texts(b, tenant, nothing);
    texts(b, database, nothing);
    texts(b, namespace, nothing);
    texts(b, collection, nothing);
    numbers(b, relation_id);
    texts(b, version, nothing);
    written(b, &p->document_id);
    written(b, &p->key);
    written(b, &p->before);
    written(b, &p->after);
    unchanged(b);
    texts(b, transaction, nothing);
    numbers(b, committed_at);
    numbers(b, captured_at);
    free(start.data);
    void *zeros = calloc((size_t)b->rows + 1, 4);
    if (!zeros) b->failed |= FULL;
    b->holder->owned[b->holder->owned_count++] = zeros;
    if (p->setup.lines) texts(b, description, nothing);
    else nulls(b, zeros, 3); /* delta */
    if (p->setup.mark.at) texts(b, mark, nothing);
    else nulls(b, zeros, 3); /* mark */
    nulls(b, zeros, 2); /* route */
}

/* All rows of the page, once: what was written is the batch's then. */
int32_t penstock_page_export(struct page *page, struct ArrowArray *out) {
    struct holder *h = calloc(1, sizeof *h);
    struct build b = {page, h, page->state.rows, 0, FINE};
    if (!h) return FULL;
    atomic_init(&h->arrays, 0);
    columns(&b);
    init(h, out, b.rows, 1, COLUMNS + 1);
    out->n_children = COLUMNS;
    out->children = h->columns;
    if (b.failed) out->release(out);
    return b.failed;
}

/* Memory that is freed with an exported batch; KEPT times at most. */
void penstock_page_keep(struct ArrowArray *batch, void *memory) {
    struct holder *h = batch->private_data;
    h->owned[h->owned_count++] = memory;
}
