/* A column of row images in JSON -> the same images in MessagePack, as an Arrow array. */
#include "arrow.h"
#include "json.h"
#include "native.h"

/* `from` is a column of text or bytes, with 32-bit offsets; `to` is filled in if this says FINE, and
 * the caller's then. STRANGE: an image that Python has to look at. */
EXPORT int32_t penstock_convert(const struct ArrowArray *from, struct ArrowArray *to);

enum { VALID, ENDS, DATA, BUFFERS };

struct owner {
    const void *buffers[BUFFERS];
};

static void release(struct ArrowArray *array) {
    struct owner *owner = array->private_data;
    for (int i = 0; i < BUFFERS; i++) free((void *)owner->buffers[i]);
    free(owner);
    array->release = NULL;
}

static int is_set(const uint8_t *bits, int64_t i) { return !bits || bits[i >> 3] >> (i & 7) & 1; }

/* The images, one after the other; where each starts goes to `ends`, and a bit to `valid`. */
static int images(const struct ArrowArray *from, uint8_t *valid, int32_t *ends, struct buffer *data,
                  int64_t *nulls) {
    const uint8_t *known = from->buffers[VALID], *bytes = from->buffers[DATA];
    const int32_t *at = (const int32_t *)from->buffers[ENDS] + from->offset;
    int failed = FINE;
    for (int64_t i = 0; i < from->length && !failed; i++) {
        ends[i] = (int32_t)data->size;
        if (is_set(known, from->offset + i)) {
            valid[i >> 3] |= (uint8_t)(1 << (i & 7));
            failed = pk_json_to_msgpack((struct text){bytes + at[i], at[i + 1] - at[i]}, data);
        } else {
            ++*nulls;
        }
    }
    ends[from->length] = (int32_t)data->size;
    return failed;
}

int32_t penstock_convert(const struct ArrowArray *from, struct ArrowArray *to) {
    int64_t rows = from->length, nulls = 0;
    struct owner *owner = malloc(sizeof *owner);
    uint8_t *valid = calloc(1, (size_t)(rows / 8 + 1));
    int32_t *ends = malloc((size_t)(rows + 1) * sizeof *ends);
    struct buffer data = {0};
    int failed = owner && valid && ends && room(&data, 1) ? FINE : FULL;
    if (!failed) failed = images(from, valid, ends, &data, &nulls);
    if (failed) {
        free(owner), free(valid), free(ends), free(data.data);
        return failed;
    }
    *owner = (struct owner){{valid, ends, data.data}};
    *to = (struct ArrowArray){.length = rows, .null_count = nulls, .n_buffers = BUFFERS,
                              .buffers = owner->buffers, .release = release, .private_data = owner};
    return FINE;
}
