/* The one place where bytes are taken, and where room for bytes is made: every bounds check of the
 * kernel is here. What is not there is an answer (0 or NULL), never a read or a write outside. */
#ifndef PENSTOCK_CURSOR_H
#define PENSTOCK_CURSOR_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* What a function of the kernel returns. STRANGE: not an ordinary value; Python decodes it. */
enum outcome { FINE = 0, STRANGE = 1, FULL = 2 };

/* Arrow's offsets are int32: no column of a batch may be longer. */
#define LONGEST ((int64_t)INT32_MAX)

struct text {
    const uint8_t *at;
    int64_t size;
};

struct cursor {
    const uint8_t *at, *end;
};

static inline int64_t left(const struct cursor *c) { return c->end - c->at; }

/* The next `size` bytes, or NULL if they are not there. */
static inline const uint8_t *take(struct cursor *c, int64_t size) {
    const uint8_t *at = c->at;
    if (size < 0 || size > left(c)) return NULL;
    c->at += size;
    return at;
}

static inline uint32_t big32(const uint8_t *p) {
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

static inline uint64_t big64(const uint8_t *p) {
    return (uint64_t)big32(p) << 32 | big32(p + 4);
}

/* The next byte without taking it; -1 at the end. */
static inline int peek(const struct cursor *c) { return c->at < c->end ? *c->at : -1; }

static inline int take8(struct cursor *c, uint8_t *value) {
    const uint8_t *p = take(c, 1);
    if (p) *value = *p;
    return p != NULL;
}

static inline int take16(struct cursor *c, uint32_t *value) {
    const uint8_t *p = take(c, 2);
    if (p) *value = (uint32_t)p[0] << 8 | p[1];
    return p != NULL;
}

static inline int take32(struct cursor *c, uint32_t *value) {
    const uint8_t *p = take(c, 4);
    if (p) *value = big32(p);
    return p != NULL;
}

static inline int take_text(struct cursor *c, int64_t size, struct text *text) {
    text->at = take(c, size);
    text->size = size;
    return text->at != NULL;
}

/* Grows as needed; never past an int32. */
struct buffer {
    uint8_t *data;
    int64_t size, capacity;
};

/* Makes room; NULL if there is none to be had. */
uint8_t *pk_grow(struct buffer *b, int64_t more);

/* Where `more` bytes may be written next. What was written is then `wrote`. */
static inline uint8_t *room(struct buffer *b, int64_t more) {
    if (more > b->capacity - b->size) return pk_grow(b, more);
    return b->data + b->size;
}

static inline void wrote(struct buffer *b, const uint8_t *end) { b->size = end - b->data; }

static inline int put(struct buffer *b, const void *bytes, int64_t size) {
    uint8_t *at = room(b, size);
    if (!at) return FULL;
    if (size) memcpy(at, bytes, (size_t)size);
    b->size += size;
    return FINE;
}

static inline int put8(struct buffer *b, uint8_t byte) { return put(b, &byte, 1); }

#endif
