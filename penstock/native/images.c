/* One row message -> its images. Either all of a row is written, or nothing of it. */
#include "messagepack.h"
#include "page.h"
#include "json.h"

enum { TEXT = 't', NULL_VALUE = 'n', UNSENT = 'u' };

struct marks {
    int64_t document_id, key, before, after, tenant, unchanged, ends;
};

static struct marks marks_of(const struct page *p) {
    return (struct marks){p->document_id.data.size, p->key.data.size,       p->before.data.size,
                          p->after.data.size,       p->tenant.data.size,    p->unchanged.data.size,
                          p->unchanged.ends.size};
}

static void back_to(struct page *p, struct marks marks) {
    p->document_id.data.size = marks.document_id;
    p->key.data.size = marks.key;
    p->before.data.size = marks.before;
    p->after.data.size = marks.after;
    p->tenant.data.size = marks.tenant;
    p->unchanged.data.size = marks.unchanged;
    p->unchanged.ends.size = marks.ends;
}

int pk_end_text(struct texts *texts, int32_t row, int present) {
    int32_t end = (int32_t)texts->data.size;
    if (row % 8 == 0 && put8(&texts->valid, 0)) return FULL;
    if (present)
        texts->valid.data[row / 8] |= (uint8_t)(1 << row % 8);
    else
        texts->nulls++;
    return put(&texts->ends, &end, 4);
}

int pk_end_row(struct page *p, struct row row) {
    int32_t names = (int32_t)(p->unchanged.ends.size / 4) - 1;
    int failed = put(&p->rows, &row, sizeof row) | put(&p->unchanged_ends, &names, 4);
    p->state.rows++;
    return failed;
}

/* The cells of one tuple, whose tag was taken. */
static int read_cells(struct cursor *c, const struct plan *plan, struct cell *cells) {
    uint32_t count, size;
    uint8_t kind;
    if (!take16(c, &count) || (int64_t)count != plan->columns) return STRANGE;
    for (uint32_t i = 0; i < count; i++) {
        if (!take8(c, &kind)) return STRANGE;
        cells[i].kind = kind;
        if (kind == NULL_VALUE || kind == UNSENT) continue;
        if (kind != TEXT || !take32(c, &size) || !take_text(c, size, &cells[i].raw)) return STRANGE;
    }
    return FINE;
}

static int cell_value(struct page *p, const struct column *column, const struct cell *cell,
                      struct buffer *out) {
    if (cell->kind == NULL_VALUE) return pk_null(&p->style, out);
    return pk_value(&p->style, column, cell->raw, out);
}

static int label(const struct style *style, struct text text, int first, struct buffer *out) {
    if (style->json && put8(out, first ? '{' : ',')) return FULL;
    return put(out, text.at, text.size);
}

/* A row as a map; what was not sent is not in it, nor (of a key tuple) what is no key. */
static int map(struct page *p, const struct plan *plan, const struct cell *cells, int only_key,
               struct buffer *out) {
    int64_t start = out->size, count = 0;
    int failed;
    if (!p->style.json && put8(out, 0)) return FULL;
    for (int32_t i = 0; i < plan->columns; i++) {
        const struct column *column = &plan->column[i];
        if (cells[i].kind == UNSENT || (only_key && !(column->flags & FLAG_KEY))) continue;
        if ((failed = label(&p->style, column->label, !count++, out))) return failed;
        if ((failed = cell_value(p, column, &cells[i], out))) return failed;
    }
    if (!p->style.json) return pk_header(out, start, count, pk_map_header);
    return count ? put8(out, '}') : put(out, "{}", 2);
}

/* A column's value: the new row's, else the old one's, as far as that was sent. */
static const struct cell *find(const struct plan *plan, const struct cell *fresh,
                               const struct cell *old, int only_key, int32_t i) {
    if (fresh && fresh[i].kind != UNSENT) return &fresh[i];
    if (!old || old[i].kind == UNSENT) return NULL;
    return only_key && !(plan->column[i].flags & FLAG_KEY) ? NULL : &old[i];
}

struct sides {
    const struct cell *fresh, *old;
    int only_key;
};

/* A line of COPY without its end: the columns that have all of `flags`. */
static int line(const struct plan *plan, struct sides s, int flags, struct buffer *out) {
    int between = 0, failed;
    for (int32_t i = 0; i < plan->columns; i++) {
        const struct cell *cell;
        if ((plan->column[i].flags & flags) != flags) continue;
        if (between && put8(out, '\t')) return FULL;
        between = 1;
        cell = find(plan, s.fresh, s.old, s.only_key, i);
        if (cell && cell->kind == TEXT)
            failed = pk_cell(cell->raw, out);
        else
            failed = put(out, cell ? "\\N" : "\\U", 2);
        if (failed) return failed;
    }
    return FINE;
}

/* The document id of several key columns: a JSON array. */
static int several(struct page *p, const struct plan *plan, struct sides s) {
    struct buffer *out = &p->document_id.data;
    int json = p->style.json, failed = FINE;
    p->style.json = 1;
    for (int32_t k = 0; k < plan->keys && !failed; k++) {
        int32_t i = plan->key[k];
        if (put8(out, k ? ',' : '[')) failed = FULL;
        if (!failed)
            failed = cell_value(p, &plan->column[i], find(plan, s.fresh, s.old, s.only_key, i), out);
    }
    p->style.json = json;
    return failed ? failed : put8(out, ']');
}

static int plain(struct page *p, const struct column *column, const struct cell *cell,
                 struct buffer *out) {
    if (cell->kind == NULL_VALUE) return put(out, "null", 4);
    return pk_plain(&p->style, column, cell->raw, out);
}

static int key_image(struct page *p, const struct plan *plan, struct sides s) {
    struct buffer *out = &p->key.data;
    uint8_t *at;
    int failed = FINE;
    if (p->setup.lines) return line(plan, s, FLAG_IDENTITY, out);
    if (!p->style.json) {
        if (!(at = room(out, 5))) return FULL;
        wrote(out, pk_map_header(at, plan->keys));
    }
    for (int32_t k = 0; k < plan->keys && !failed; k++) {
        int32_t i = plan->key[k];
        failed = label(&p->style, plan->column[i].label, !k, out);
        if (!failed)
            failed = cell_value(p, &plan->column[i], find(plan, s.fresh, s.old, s.only_key, i), out);
    }
    return !failed && p->style.json ? put8(out, '}') : failed;
}

static int identify(struct page *p, const struct plan *plan, struct sides s, int *known) {
    int failed;
    *known = 0;
    if (!plan->keys) return FINE;
    for (int32_t k = 0; k < plan->keys; k++)
        if (!find(plan, s.fresh, s.old, s.only_key, plan->key[k])) return FINE;
    *known = 1;
    if ((failed = key_image(p, plan, s))) return failed;
    if (plan->keys > 1) return several(p, plan, s);
    return plain(p, &plan->column[plan->key[0]],
                 find(plan, s.fresh, s.old, s.only_key, plan->key[0]), &p->document_id.data);
}

static int owner(struct page *p, const struct plan *plan, struct sides s, int *known) {
    const struct cell *cell;
    *known = 0;
    if (plan->tenant < 0) return FINE;
    cell = find(plan, s.fresh, s.old, s.only_key, plan->tenant);
    if (!cell || cell->kind == NULL_VALUE) return FINE;
    *known = 1;
    return plain(p, &plan->column[plan->tenant], cell, &p->tenant.data);
}

/* The names of the columns that were not sent. `whole`: there must be none. */
static int unchanged(struct page *p, const struct plan *plan, const struct cell *cells, int whole) {
    struct texts *names = &p->unchanged;
    for (int32_t i = 0; i < plan->columns; i++) {
        int32_t end;
        if (cells[i].kind != UNSENT) continue;
        if (whole) return STRANGE;
        if (put(&names->data, plan->column[i].name.at, plan->column[i].name.size)) return FULL;
        end = (int32_t)names->data.size;
        if (put(&names->ends, &end, 4)) return FULL;
    }
    return FINE;
}

static int image(struct page *p, const struct plan *plan, const struct cell *cells, int only_key,
                 struct buffer *out) {
    if (p->setup.lines) return line(plan, (struct sides){NULL, cells, only_key}, 0, out);
    return map(p, plan, cells, only_key, out);
}

static int read_sides(struct page *p, const struct plan *plan, uint8_t tag, struct cursor c,
                      struct sides *s) {
    uint8_t side;
    *s = (struct sides){0};
    if (!take8(&c, &side)) return STRANGE;
    if (side == 'K' || side == 'O') {
        if (tag == 'I' || read_cells(&c, plan, p->cells[OLD])) return STRANGE;
        s->old = p->cells[OLD];
        s->only_key = side == 'K';
        if (tag == 'D') return left(&c) ? STRANGE : FINE;
        if (!take8(&c, &side)) return STRANGE;
    }
    if (side != 'N' || tag == 'D' || read_cells(&c, plan, p->cells[NEW])) return STRANGE;
    s->fresh = p->cells[NEW];
    return left(&c) ? STRANGE : FINE;
}

static int write_row(struct page *p, const struct plan *plan, uint8_t tag, struct sides s,
                     struct row row) {
    int32_t at = p->state.rows;
    int failed, identified, owned;
    if (s.fresh && (failed = unchanged(p, plan, s.fresh, tag == 'I'))) return failed;
    if (s.fresh && (failed = image(p, plan, s.fresh, 0, &p->after.data))) return failed;
    if (s.old && (failed = image(p, plan, s.old, s.only_key, &p->before.data))) return failed;
    if ((failed = identify(p, plan, s, &identified))) return failed;
    if ((failed = owner(p, plan, s, &owned))) return failed;
    return pk_end_text(&p->document_id, at, identified) | pk_end_text(&p->key, at, identified) |
           pk_end_text(&p->before, at, s.old != NULL) | pk_end_text(&p->after, at, s.fresh != NULL) |
           pk_end_text(&p->tenant, at, owned) | pk_end_row(p, row);
}

static int make_cells(struct page *p, int32_t count) {
    if (count <= p->cell_capacity) return FINE;
    for (int side = OLD; side <= NEW; side++) {
        void *cells = realloc(p->cells[side], (size_t)count * sizeof(struct cell));
        if (!cells) return FULL;
        p->cells[side] = cells;
    }
    p->cell_capacity = count;
    return FINE;
}

int pk_row(struct page *p, const struct relation *relation, uint8_t tag, struct cursor c) {
    const struct plan *plan = relation->plan;
    struct marks marks = marks_of(p);
    struct sides sides;
    struct row row = {p->state.unit, relation->index, p->state.ordinal,
                      tag == 'I' ? 0 : tag == 'U' ? 1 : 2, -1, 0};
    int failed;
    if (plan->columns < 0) return STRANGE;
    if (make_cells(p, plan->columns + 1)) return FULL; /* so that there are some */
    if (read_sides(p, plan, tag, c, &sides)) return STRANGE;
    failed = write_row(p, plan, tag, sides, row);
    if (failed == STRANGE) back_to(p, marks);
    return failed;
}
