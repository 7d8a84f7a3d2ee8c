/* The hash partition of each row: FNV-1a of its collection, a slash and its document id. */
#include "columns.h"

#define OFFSET 0xcbf29ce484222325u
#define PRIME 0x100000001b3u

EXPORT void penstock_hash_partitions(const struct column *collection,
                                     const struct column *document, int64_t rows, int32_t count,
                                     int32_t *out);

static uint64_t hashed(uint64_t hash, const struct column *c, int64_t row) {
    int64_t size;
    const uint8_t *at = value(c, row, &size);
    while (size--) hash = (hash ^ *at++) * PRIME;
    return hash;
}

/* A row without a document id gets 0. `count` is how many partitions there are. */
void penstock_hash_partitions(const struct column *collection, const struct column *document,
                              int64_t rows, int32_t count, int32_t *out) {
    for (int64_t row = 0; row < rows; row++) {
        uint64_t hash = OFFSET;
        if (is_null(document, row)) {
            out[row] = 0;
            continue;
        }
        if (!is_null(collection, row)) hash = hashed(hash, collection, row);
        hash = hashed((hash ^ '/') * PRIME, document, row);
        out[row] = (int32_t)(hash % (uint64_t)count);
    }
}
