/* Formats columns into rows of bytes: constants, values, lengths and numbers, one after the other.
 *
 * How a value is written is in written.h; what a message looks like is the caller's list of
 * pieces. Nothing here allocates what the caller has to free, and nothing writes behind
 * `penstock_format_bound`.
 */

#include "written.h"

struct piece {
    int32_t kind, a, b, form;
    const uint8_t *data;
    int64_t size;
};

enum { CONST, RAW, TEXT, PICK, TIME, PLACE, STRINGS, SIZE, COUNT, EDGE, BEHIND, HEADER };

struct formatting {
    const struct piece *pieces;
    int64_t count;
};

/* Bytes that rows have in all formatters but the first: together, and the largest. */
struct sizes {
    int64_t all, most;
};

#define UNKNOWN INT64_MIN /* the caller has to do it in its other way */

EXPORT int64_t penstock_format_bound(const struct piece *pieces, int32_t count,
                                    const struct column *columns, int64_t rows);
EXPORT int64_t penstock_format(const struct piece *pieces, int32_t count,
                              const struct column *columns, int64_t rows, int64_t first,
                              uint8_t *out, int32_t *ends);
EXPORT int64_t penstock_format_all_bound(const struct formatting *all, int32_t count,
                                         const struct column *columns, int64_t rows);
EXPORT int64_t penstock_format_all(const struct formatting *all, int32_t count,
                                   const struct column *columns, int64_t rows, uint8_t *out,
                                   int32_t *ends, struct sizes *sizes);

/* Of the four values of an EDGE, from `form` on: in the middle, the first, the last, the only. */
static const uint8_t *edge(const struct piece *p, const struct column *c, int64_t row,
                           int64_t rows, int64_t *size) {
    return value(c, p->form + (row == 0) + 2 * (row == rows - 1), size);
}

static const uint8_t *behind(const struct piece *p, const struct column *columns, int64_t row,
                             int64_t *size) {
    return row ? value(columns + p->a, row - 1, size) : value(columns + p->b, p->form, size);
}

/* Bytes of one piece in one row; -1 where only writing tells. */
static int64_t measured(const struct piece *p, const struct column *columns, int64_t row,
                        int64_t rows, int64_t number) {
    const struct column *c = columns + p->a;
    int64_t size;
    switch (p->kind) {
    case CONST: return p->size;
    case COUNT: return digits_in((uint64_t)number);
    case RAW:
        if (p->form != PLAIN) return -1;
        if (is_null(c, row)) return p->size;
        value(c, row, &size);
        return size;
    case PICK:
        value(columns + p->b, integer(c, row, 4), &size);
        return size;
    case EDGE:
        edge(p, c, row, rows, &size);
        return size;
    case BEHIND:
        behind(p, columns, row, &size);
        return size;
    }
    return -1;
}

static int64_t span(const struct column *c, int64_t rows) {
    return c->offsets[c->offset + rows] - c->offsets[c->offset];
}

/* Most bytes that a text column's bytes can become, without what stands around each value. */
static int64_t grown(int64_t size, int form) { return form == JSON ? 6 * size : size; }

int64_t penstock_format_bound(const struct piece *pieces, int32_t count,
                             const struct column *columns, int64_t rows) {
    int64_t total = 0, size, most;
    for (const struct piece *p = pieces; p < pieces + count; p++) {
        const struct column *c = columns + p->a, *d = columns + p->b;
        switch (p->kind) {
        case CONST: total += rows * p->size; break;
        case RAW: case HEADER: total += span(c, rows) + rows * p->size; break;
        case TEXT: total += grown(span(c, rows), p->form) + rows * (5 + p->size); break;
        case PLACE: total += grown(span(c, rows), p->form) + rows * 32; break;
        case PICK:
            most = 0;
            for (int64_t i = 0; i < d->length; i++) {
                value(d, i, &size);
                if (size > most) most = size;
            }
            total += rows * most;
            break;
        case EDGE:
            value(c, p->form, &size);
            total += rows * size + span(c, c->length);
            break;
        case BEHIND: total += span(c, rows) + span(d, d->length); break;
        case STRINGS: {
            int64_t items = span(c, rows);
            const int32_t *ends = d->offsets + d->offset, first = c->offsets[c->offset];
            if (items) total += grown(ends[first + items] - ends[first], p->form);
            total += items * 6 + rows * (5 + p->size);
            break;
        }
        default: total += rows * (32 + p->size);
        }
    }
    return total;
}

/* Writes rows `start` to before `start + rows` to `out`; `ends[0]` is where the first begins and
 * `ends[i + 1]` where row i ends. COUNT is `first` in the first row. Returns the bytes written;
 * -1 - row when that row has a line break where none may be; UNKNOWN. */
int64_t penstock_format(const struct piece *pieces, int32_t count, const struct column *columns,
                       int64_t rows, int64_t first, uint8_t *out, int32_t *ends) {
    uint8_t *at = out;
    int64_t size;
    struct written times[TIMES] = {{0, 0, {0}}};
    ends[0] = 0;
    for (int64_t row = 0; row < rows; row++) {
        for (const struct piece *p = pieces; p < pieces + count; p++) {
            const struct column *c = columns + p->a, *d = columns + p->b;
            switch (p->kind) {
            case CONST:
                at = put(at, p->data, p->size);
                continue;
            case COUNT:
                at = put_unsigned(at, (uint64_t)(first + row));
                continue;
            case SIZE: {
                int64_t total = 0;
                for (const struct piece *q = pieces + p->a; q < pieces + p->b; q++) {
                    if ((size = measured(q, columns, row, rows, first + row)) < 0) return UNKNOWN;
                    total += size;
                }
                at = put_unsigned(at, (uint64_t)total);
                continue;
            }
            case PICK: {
                const uint8_t *text = value(d, integer(c, row, 4), &size);
                at = put(at, text, size);
                continue;
            }
            case EDGE: {
                const uint8_t *text = edge(p, c, row, rows, &size);
                at = put(at, text, size);
                continue;
            }
            case BEHIND: {
                const uint8_t *text = behind(p, columns, row, &size);
                at = put(at, text, size);
                continue;
            }
            }
            if (is_null(c, row)) {
                if (p->kind != HEADER) at = put(at, p->data, p->size);
                continue;
            }
            uint8_t *next = NULL;
            switch (p->kind) {
            case HEADER: at = put(at, p->data, p->size); /* fall through */
            case RAW:
            case TEXT: {
                const uint8_t *text = value(c, row, &size);
                next = put_text(at, text, size, p->form);
                break;
            }
            case PLACE: next = put_place(at, c, d, row, p->form); break;
            case STRINGS: next = put_strings(at, c, d, row, p->form); break;
            case TIME:
                next = put_known_time(at, integer(c, row, 8), p->form,
                                      times + ((p - pieces) & (TIMES - 1)));
                if (!next) return UNKNOWN;
                break;
            default: return UNKNOWN;
            }
            if (!next) return -1 - row;
            at = next;
        }
        ends[row + 1] = (int32_t)(at - out);
    }
    return at - out;
}

int64_t penstock_format_all_bound(const struct formatting *all, int32_t count,
                                  const struct column *columns, int64_t rows) {
    int64_t total = 0;
    for (const struct formatting *f = all; f < all + count; f++)
        total += penstock_format_bound(f->pieces, (int32_t)f->count, columns, rows);
    return total;
}

static struct sizes sizes_of(const int32_t *ends, int64_t count, int64_t rows) {
    struct sizes found = {0, 0};
    for (int64_t row = 0; row < rows; row++) {
        int64_t size = 0;
        for (int64_t i = 1; i < count; i++)
            size += ends[i * (rows + 1) + row + 1] - ends[i * (rows + 1) + row];
        found.all += size;
        if (size > found.most) found.most = size;
    }
    return found;
}

/* What each of several formatters makes of the same rows, one behind the other. `all_ends` has
 * `rows + 1` numbers for each, all of them from `out` on. Returns as `penstock_format`. */
int64_t penstock_format_all(const struct formatting *all, int32_t count,
                            const struct column *columns, int64_t rows, uint8_t *out,
                            int32_t *all_ends, struct sizes *sizes) {
    int64_t total = 0;
    int32_t *ends = all_ends;
    for (const struct formatting *f = all; f < all + count; f++, ends += rows + 1) {
        int64_t size = penstock_format(f->pieces, (int32_t)f->count, columns, rows, 0, out + total,
                                       ends);
        if (size < 0) return size;
        for (int64_t i = 0; i <= rows; i++) ends[i] += (int32_t)total;
        total += size;
    }
    *sizes = sizes_of(all_ends, count, rows);
    return total;
}
