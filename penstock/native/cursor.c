/* The slow side of cursor.h: memory. */
#include "cursor.h"

uint8_t *pk_grow(struct buffer *b, int64_t more) {
    int64_t wanted, capacity;
    uint8_t *data;
    if (more < 0 || more > LONGEST - b->size) return NULL;
    wanted = b->size + more;
    capacity = b->capacity > LONGEST / 2 ? LONGEST : b->capacity * 2;
    if (capacity < wanted) capacity = wanted;
    if (capacity < 256) capacity = 256;
    data = realloc(b->data, (size_t)capacity);
    if (!data) return NULL;
    b->data = data;
    b->capacity = capacity;
    return data + b->size;
}
