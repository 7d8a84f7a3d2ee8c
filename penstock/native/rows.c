/* Where a batch's columns are (Arrow's C data interface), and what rows have in common: equal
 * values, rising places, bytes together. Reads only. */

#include "arrow.h"
#include "columns.h"

#include <stdlib.h>

/* As much as is kept of what rows have in common; empty where it is more. */
struct key {
    int64_t size;
    uint8_t data[1 << 16];
};

EXPORT int64_t penstock_rows_kinds(const struct column *columns, const int32_t *slots,
                                    const int32_t *widths, int32_t count, int64_t rows,
                                    int32_t *kinds, int32_t *firsts, struct key *key);
struct survey {
    int32_t simple, first, last, is_committed; /* `first` and `last` are ordinals */
    int64_t weight, size, committed_at, sizes[6];
    const uint8_t *texts[6];
};

/* `count` kinds of rows: which each row has, how many have each, and the key of all; see
 * `penstock_rows_kinds`. */
struct kinds {
    int64_t count, key_size;
    int32_t *of, *counts;
    uint8_t *key;
};

/* A page's changes: the batch, what is known of it, and where its columns are. */
struct changes {
    struct ArrowArray batch;
    struct survey survey;
    struct kinds kinds;
    struct column columns[];
};

struct page;
/* In batch.c; `keep` gives memory to an exported batch. */
int32_t penstock_page_export(struct page *page, struct ArrowArray *out);
void penstock_page_keep(struct ArrowArray *batch, void *memory);

EXPORT void penstock_rows_survey(const struct column *columns, const int32_t *slots, int64_t rows,
                                  struct survey *out);
EXPORT int64_t penstock_rows_runs(const struct column *columns, const int32_t *slots, int64_t rows,
                                   int32_t *starts);
EXPORT int64_t penstock_rows_span(const struct column *c, int64_t start, int64_t rows);
EXPORT void penstock_rows_columns(const struct ArrowArray *batch, struct column *out);
EXPORT void penstock_rows_release(struct ArrowArray *batch);
EXPORT int32_t penstock_rows_changes(struct page *page, const int32_t *slots,
                                     const int32_t *kind_slots, const int32_t *widths,
                                     int32_t count, struct changes *out);

/* The columns of an exported record batch, followed by the items of its lists. `out` has room
 * for twice as many. */
void penstock_rows_columns(const struct ArrowArray *batch, struct column *out) {
    struct column *items = out + batch->n_children;
    for (int64_t i = 0; i < batch->n_children; i++) {
        const struct ArrowArray *child = batch->children[i];
        int wide = child->n_buffers == 3 || child->n_children == 1;
        out[i].valid = child->null_count == 0 ? NULL : child->buffers[0];
        out[i].offsets = wide ? child->buffers[1] : NULL;
        out[i].data = child->n_buffers == 3 ? child->buffers[2] : wide ? NULL : child->buffers[1];
        out[i].offset = child->offset + batch->offset;
        out[i].length = batch->length;
        if (child->n_children == 1) {
            const struct ArrowArray *item = child->children[0];
            items->valid = NULL;
            items->offsets = item->buffers[1];
            items->data = item->buffers[2];
            items->offset = item->offset;
            items->length = item->length;
            items++;
        }
    }
}

void penstock_rows_release(struct ArrowArray *batch) {
    if (batch->release) batch->release(batch);
}

static inline int equal(const uint8_t *a, const uint8_t *b, int64_t size) {
    uint64_t left, right;
    for (; size >= 8; a += 8, b += 8, size -= 8) {
        memcpy(&left, a, 8);
        memcpy(&right, b, 8);
        if (left != right) return 0;
    }
    while (size--)
        if (*a++ != *b++) return 0;
    return 1;
}

/* Same rows: the values of some columns as one key. `widths` is bytes of an integer, 0 for text. */

static const uint8_t *field(const struct column *c, int64_t row, int32_t width, int64_t *size) {
    if (!width) return value(c, row, size);
    *size = width;
    return (const uint8_t *)c->data + (c->offset + row) * width;
}

static int same_values(const struct column *c, int32_t width, int64_t one, int64_t other) {
    int64_t left, right;
    int null = is_null(c, one);
    if (null != is_null(c, other)) return 0;
    if (null) return 1;
    const uint8_t *a = field(c, one, width, &left), *b = field(c, other, width, &right);
    return left == right && equal(a, b, left);
}

static int same_rows(const struct column *columns, const int32_t *slots, const int32_t *widths,
                     int32_t count, int64_t one, int64_t other) {
    for (int32_t i = 0; i < count; i++)
        if (!same_values(columns + slots[i], widths[i], one, other)) return 0;
    return 1;
}

static uint64_t hash_of(const struct column *columns, const int32_t *slots, const int32_t *widths,
                        int32_t count, int64_t row) {
    uint64_t hash = 0xcbf29ce484222325u;
    for (int32_t i = 0; i < count; i++) {
        int64_t size = 0;
        const struct column *c = columns + slots[i];
        const uint8_t *data = is_null(c, row) ? NULL : field(c, row, widths[i], &size);
        hash = (hash ^ (uint64_t)(data ? size + 1 : 0)) * 0x100000001b3u;
        for (int64_t j = 0; j < size; j++) hash = (hash ^ data[j]) * 0x100000001b3u;
    }
    return hash ^ hash >> 29;
}

/* The values of some rows as bytes that are equal when the values are; how many, 0 when they are
 * more than `capacity`. */
static int64_t keys(const struct column *columns, const int32_t *slots, const int32_t *widths,
                    int32_t count, const int32_t *rows, int64_t row_count, uint8_t *out,
                    int64_t capacity) {
    uint8_t *at = out;
    for (int64_t i = 0; i < row_count; i++)
        for (int32_t j = 0; j < count; j++) {
            const struct column *c = columns + slots[j];
            int64_t size = 0;
            int null = is_null(c, rows[i]);
            const uint8_t *data = null ? NULL : field(c, rows[i], widths[j], &size);
            int32_t length = null ? -1 : (int32_t)size;
            if (at - out + size + 4 > capacity) return 0;
            at = put(put(at, &length, 4), data, size);
        }
    return at - out;
}

/* Numbers the distinct combinations in the order of their first rows: `kinds` of each row, `firsts`
 * of each kind, and as `key` the values of all kinds: of each its bytes, after their number or -1.
 * Returns how many; -1 without memory. */
int64_t penstock_rows_kinds(const struct column *columns, const int32_t *slots,
                             const int32_t *widths, int32_t count, int64_t rows, int32_t *kinds,
                             int32_t *firsts, struct key *key) {
    int32_t *table = NULL;
    int64_t found = 1, room = 16;
    kinds[0] = firsts[0] = 0;
    while (room < 2 * rows) room *= 2;
    for (int64_t row = 1; row < rows; row++) {
        if (same_rows(columns, slots, widths, count, row - 1, row)) {
            kinds[row] = kinds[row - 1];
            continue;
        }
        if (!table) {
            if (!(table = malloc((size_t)room * sizeof *table))) return -1;
            memset(table, 0xff, (size_t)room * sizeof *table);
            table[hash_of(columns, slots, widths, count, 0) & (uint64_t)(room - 1)] = 0;
        }
        uint64_t at = hash_of(columns, slots, widths, count, row) & (uint64_t)(room - 1);
        while (table[at] >= 0 && !same_rows(columns, slots, widths, count, firsts[table[at]], row))
            at = (at + 1) & (uint64_t)(room - 1);
        if (table[at] < 0) {
            table[at] = (int32_t)found;
            firsts[found++] = (int32_t)row;
        }
        kinds[row] = table[at];
    }
    free(table);
    key->size = keys(columns, slots, widths, count, firsts, found, key->data, sizeof key->data);
    return found;
}

/* Whether all rows have the same value. */
static int is_constant(const struct column *c, int64_t rows) {
    for (int64_t row = 1; row < rows; row++)
        if (!same_values(c, 0, row - 1, row)) return 0;
    return 1;
}

/* Whether (text, int32) of a row is greater than that of the row before it. */
static int rises(const struct column *texts, const struct column *numbers, int64_t row) {
    int64_t left, right;
    const uint8_t *a = value(texts, row - 1, &left), *b = value(texts, row, &right);
    int64_t least = left < right ? left : right;
    int order = least ? memcmp(a, b, (size_t)least) : 0;
    if (!order) order = left < right ? -1 : left > right;
    return order ? order < 0 : integer(numbers, row - 1, 4) < integer(numbers, row, 4);
}

static int is_ascending(const struct column *texts, const struct column *numbers, int64_t rows) {
    for (int64_t row = 1; row < rows; row++)
        if (!rises(texts, numbers, row)) return 0;
    return 1;
}

/* Runs of neighbouring rows that have one origin. `slots` are backend, partition, cursor and
 * ordinal; `starts` gets the first row of each run. Returns how many runs there are; 0 when the
 * places of a run do not rise. */
int64_t penstock_rows_runs(const struct column *columns, const int32_t *slots, int64_t rows,
                            int32_t *starts) {
    const struct column *backend = columns + slots[0], *partition = columns + slots[1];
    int64_t found = 0;
    for (int64_t row = 0; row < rows; row++) {
        if (!row || !same_values(partition, 0, row - 1, row) ||
            !same_values(backend, 0, row - 1, row))
            starts[found++] = (int32_t)row;
        else if (!rises(columns + slots[2], columns + slots[3], row))
            return 0;
    }
    return found;
}

/* Bytes that the values of some rows have together. */
int64_t penstock_rows_span(const struct column *c, int64_t start, int64_t rows) {
    const int32_t *at = c->offsets + c->offset + start;
    return at[rows] - at[0];
}

/* What one has to know of a batch before it is encoded. `slots` are backend, partition, cursor,
 * ordinal, the four images, event id, mark and commit time. `simple`: one origin, in order. `texts`
 * are backend, partition, the first and the last cursor, the last event id, and the last mark or
 * NULL; `committed_at` is the last; `weight` the bytes of the images. There is a row at least. */
void penstock_rows_survey(const struct column *columns, const int32_t *slots, int64_t rows,
                           struct survey *out) {
    const struct column *backend = columns + slots[0], *partition = columns + slots[1],
                        *cursor = columns + slots[2], *ordinal = columns + slots[3],
                        *mark = columns + slots[9], *committed = columns + slots[10];
    int64_t last = rows - 1;
    out->simple = is_constant(backend, rows) && is_constant(partition, rows) &&
                  is_ascending(cursor, ordinal, rows);
    out->texts[0] = value(backend, 0, out->sizes);
    out->texts[1] = value(partition, 0, out->sizes + 1);
    out->texts[2] = value(cursor, 0, out->sizes + 2);
    out->texts[3] = value(cursor, last, out->sizes + 3);
    out->texts[4] = value(columns + slots[8], last, out->sizes + 4);
    out->texts[5] = is_null(mark, last) ? NULL : value(mark, last, out->sizes + 5);
    out->first = (int32_t)integer(ordinal, 0, 4);
    out->last = (int32_t)integer(ordinal, last, 4);
    out->is_committed = !is_null(committed, last);
    out->committed_at = out->is_committed ? integer(committed, last, 8) : 0;
    out->weight = out->size = 0;
    for (int i = 4; i < 8; i++) out->weight += penstock_rows_span(columns + slots[i], 0, rows);
}

/* Bytes that a column's buffers have. */
static int64_t size_of(const struct ArrowArray *array) {
    int64_t rows = array->length, size = array->n_children ? size_of(array->children[0]) : 0;
    const int32_t *ends = array->buffers[1];
    if (array->n_buffers == 3) size += ends[rows] - ends[0];
    return size + (rows + 1) * (array->n_buffers == 3 || array->n_children ? 4 : 8);
}

/* The kinds of a batch's rows, in memory that is the batch's. */
static int32_t keep_kinds(const int32_t *slots, const int32_t *widths, int32_t count,
                          struct changes *out) {
    struct kinds *k = &out->kinds;
    int64_t rows = out->batch.length;
    struct key *key = malloc(sizeof *key);
    k->of = malloc((size_t)rows * 2 * sizeof *k->of);
    k->count = -1;
    if (key && k->of) {
        k->counts = k->of + rows;
        k->count = penstock_rows_kinds(out->columns, slots, widths, count, rows, k->of, k->counts,
                                       key);
    }
    if (k->count > 0 && (k->key = malloc((size_t)key->size + 1))) {
        memcpy(k->key, key->data, (size_t)key->size);
        k->key_size = key->size;
        penstock_page_keep(&out->batch, k->key);
        memset(k->counts, 0, (size_t)k->count * sizeof *k->counts);
        for (int64_t i = 0; i < rows; i++) k->counts[k->of[i]]++;
    } else {
        k->count = -1;
    }
    free(key);
    penstock_page_keep(&out->batch, k->of);
    return k->count < 0;
}

/* All rows of a page, of which there is one at least; see `penstock_page_export`. `slots` as for a
 * survey, what follows as for kinds. */
int32_t penstock_rows_changes(struct page *page, const int32_t *slots, const int32_t *kind_slots,
                              const int32_t *widths, int32_t count, struct changes *out) {
    int32_t failed = penstock_page_export(page, &out->batch);
    if (failed) return failed;
    penstock_rows_columns(&out->batch, out->columns);
    penstock_rows_survey(out->columns, slots, out->batch.length, &out->survey);
    for (int64_t i = 0; i < out->batch.n_children; i++)
        out->survey.size += size_of(out->batch.children[i]);
    return keep_kinds(kind_slots, widths, count, out);
}
