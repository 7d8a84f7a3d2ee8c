/* MessagePack as ormsgpack writes it: always the shortest form. */
#ifndef PENSTOCK_MESSAGEPACK_H
#define PENSTOCK_MESSAGEPACK_H

#include "cursor.h"

/* Writes `size` low bytes of `value` after a tag. */
static inline uint8_t *pk_tagged(uint8_t *at, uint8_t tag, uint64_t value, int size) {
    *at++ = tag;
    for (int shift = (size - 1) * 8; shift >= 0; shift -= 8) *at++ = (uint8_t)(value >> shift);
    return at;
}

static inline uint8_t *pk_msgpack_unsigned(uint8_t *at, uint64_t value) {
    if (value < 128) return *at = (uint8_t)value, at + 1;
    if (value <= UINT8_MAX) return pk_tagged(at, 0xCC, value, 1);
    if (value <= UINT16_MAX) return pk_tagged(at, 0xCD, value, 2);
    if (value <= UINT32_MAX) return pk_tagged(at, 0xCE, value, 4);
    return pk_tagged(at, 0xCF, value, 8);
}

static inline uint8_t *pk_msgpack_negative(uint8_t *at, int64_t value) {
    if (value >= -32) return *at = (uint8_t)value, at + 1;
    if (value >= INT8_MIN) return pk_tagged(at, 0xD0, (uint64_t)value, 1);
    if (value >= INT16_MIN) return pk_tagged(at, 0xD1, (uint64_t)value, 2);
    if (value >= INT32_MIN) return pk_tagged(at, 0xD2, (uint64_t)value, 4);
    return pk_tagged(at, 0xD3, (uint64_t)value, 8);
}

static inline uint8_t *pk_msgpack_double(uint8_t *at, double value) {
    uint64_t bits;
    memcpy(&bits, &value, 8);
    return pk_tagged(at, 0xCB, bits, 8);
}

/* At most 5 bytes, as are the next three. */
static inline uint8_t *pk_string_header(uint8_t *at, int64_t size) {
    if (size < 32) return *at = (uint8_t)(0xA0 | size), at + 1;
    if (size <= UINT8_MAX) return pk_tagged(at, 0xD9, (uint64_t)size, 1);
    if (size <= UINT16_MAX) return pk_tagged(at, 0xDA, (uint64_t)size, 2);
    return pk_tagged(at, 0xDB, (uint64_t)size, 4);
}

static inline uint8_t *pk_bytes_header(uint8_t *at, int64_t size) {
    if (size <= UINT8_MAX) return pk_tagged(at, 0xC4, (uint64_t)size, 1);
    if (size <= UINT16_MAX) return pk_tagged(at, 0xC5, (uint64_t)size, 2);
    return pk_tagged(at, 0xC6, (uint64_t)size, 4);
}

static inline uint8_t *pk_array_header(uint8_t *at, int64_t count) {
    if (count < 16) return *at = (uint8_t)(0x90 | count), at + 1;
    if (count <= UINT16_MAX) return pk_tagged(at, 0xDC, (uint64_t)count, 2);
    return pk_tagged(at, 0xDD, (uint64_t)count, 4);
}

static inline uint8_t *pk_map_header(uint8_t *at, int64_t count) {
    if (count < 16) return *at = (uint8_t)(0x80 | count), at + 1;
    if (count <= UINT16_MAX) return pk_tagged(at, 0xDE, (uint64_t)count, 2);
    return pk_tagged(at, 0xDF, (uint64_t)count, 4);
}

/* The header of what begins at `start`, which has one byte of room for it, now that the count (or
 * a string's size) is known: moves what follows if it is longer. */
static inline int pk_header(struct buffer *out, int64_t start, int64_t count,
                            uint8_t *(*header)(uint8_t *, int64_t)) {
    uint8_t bytes[5];
    int64_t more = header(bytes, count) - bytes - 1, inside = out->size - start - 1;
    if (more) {
        if (!room(out, more)) return FULL;
        memmove(out->data + start + 1 + more, out->data + start + 1, (size_t)inside);
        out->size += more;
    }
    memcpy(out->data + start, bytes, (size_t)more + 1);
    return FINE;
}

#endif
