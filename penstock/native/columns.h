/* Columns as format.c and rows.c see them: where Arrow has their values. */
#ifndef PENSTOCK_COLUMNS_H
#define PENSTOCK_COLUMNS_H

#include "native.h"

#include <string.h>

struct column {
    const uint8_t *valid;   /* bitmap, or NULL: no nulls */
    const int32_t *offsets; /* of binary and of lists */
    const void *data;
    int64_t offset, length;
};

static inline int is_null(const struct column *c, int64_t row) {
    row += c->offset;
    return c->valid && !(c->valid[row >> 3] >> (row & 7) & 1);
}

static inline const uint8_t *value(const struct column *c, int64_t row, int64_t *size) {
    const int32_t *at = c->offsets + c->offset + row;
    *size = at[1] - at[0];
    return (const uint8_t *)c->data + at[0];
}

static inline int64_t integer(const struct column *c, int64_t row, int width) {
    row += c->offset;
    return width == 4 ? ((const int32_t *)c->data)[row] : ((const int64_t *)c->data)[row];
}

/* Most pieces are short, and a call of memcpy costs more than they do: two copies of a fixed size
 * that overlap in the middle. */
static inline uint8_t *put(uint8_t *out, const void *from, int64_t size) {
    const uint8_t *data = from;
    if (size > 32) {
        memcpy(out, data, (size_t)size);
    } else if (size >= 16) {
        memcpy(out, data, 16);
        memcpy(out + size - 16, data + size - 16, 16);
    } else if (size >= 8) {
        memcpy(out, data, 8);
        memcpy(out + size - 8, data + size - 8, 8);
    } else if (size >= 4) {
        memcpy(out, data, 4);
        memcpy(out + size - 4, data + size - 4, 4);
    } else {
        for (int64_t i = 0; i < size; i++) out[i] = data[i];
    }
    return out + size;
}

#endif
