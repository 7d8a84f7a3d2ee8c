/* Rows of COPY TO STDOUT -> Insert messages, framed as the log sends them, or lines for COPY FROM
 * STDIN: for feeds/postgres/rows.py, which does the same in Python. A CopyData message has one row (protocol-flow: "always one per
 * row"), in COPY's text format, with a line end. */
#include <string.h>

#include "native.h"

#define HEAD 38 /* `d`, a length, `w` and 24 bytes, `I`, a table, `N`, the number of columns */
#define CELL 5  /* `t` and a length */

/* What both functions answer. */
enum { MORE, OTHER, FULL, BROKEN };

struct copied {
    int64_t position, end; /* of the messages; where it ended */
    int64_t written, room; /* of the output */
    int64_t size;          /* after which no row is begun */
    int64_t rows, most;
};

EXPORT int32_t penstock_copy_rows(const uint8_t *data, struct copied *state, uint8_t *out,
                                  const uint8_t *head, int32_t columns);
EXPORT int32_t penstock_copy_lines(const uint8_t *data, struct copied *state, uint8_t *out,
                                   const uint8_t *prefix, int32_t prefixed);

static uint32_t number(const uint8_t *at) {
    return (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
}

static void length(uint8_t *at, int64_t value) {
    for (int i = 0; i < 4; i++) at[i] = (uint8_t)(value >> (24 - 8 * i));
}

/* COPY's escapes (copyto.c, CopyAttributeOutText); any other character stands for itself. */
static uint8_t unescaped(uint8_t byte) {
    static const char names[] = "bfnrtv", values[] = "\b\f\n\r\t\v";
    const char *found = byte ? strchr(names, byte) : NULL;
    return found ? (uint8_t)values[found - names] : byte;
}

/* One value up to its tab or the end; NULL where an escape is cut off. */
static uint8_t *cell(const uint8_t **from, const uint8_t *end, uint8_t *out) {
    const uint8_t *at = *from, *stop = memchr(at, '\t', (size_t)(end - at));
    uint8_t *to = out + CELL;
    if (!stop) stop = end;
    *from = stop;
    if (stop - at == 2 && at[0] == '\\' && at[1] == 'N') return *out = 'n', out + 1;
    for (;;) {
        const uint8_t *slash = memchr(at, '\\', (size_t)(stop - at));
        int64_t plain = (slash ? slash : stop) - at;
        memcpy(to, at, (size_t)plain);
        to += plain;
        if (!slash) break;
        if (slash + 1 >= stop) return NULL;
        *to++ = unescaped(slash[1]);
        at = slash + 2;
    }
    *out = 't';
    length(out + 1, to - out - CELL);
    return to;
}

/* The end of the message; NULL where the row has not these columns. */
static uint8_t *row(const uint8_t *at, const uint8_t *end, uint8_t *out, const uint8_t *head,
                    int32_t columns) {
    uint8_t *to = out + HEAD;
    memcpy(out, head, HEAD);
    for (int32_t i = 0; i < columns; i++) {
        if (i && (at >= end || *at++ != '\t')) return NULL;
        if (!(to = cell(&at, end, to))) return NULL;
    }
    if (at != end) return NULL;
    length(out + 1, to - out - 1);
    return to;
}

int32_t penstock_copy_rows(const uint8_t *data, struct copied *state, uint8_t *out,
                           const uint8_t *head, int32_t columns) {
    while (state->end - state->position >= 5) {
        const uint8_t *at = data + state->position;
        int64_t size = (int64_t)number(at + 1) + 1;
        uint8_t *to = out + state->written;
        if (*at != 'd') return OTHER;
        if (size < 6) return BROKEN;
        if (size > state->end - state->position) return MORE;
        if (at[size - 1] != '\n') return BROKEN;
        if (state->rows == state->most || state->written >= state->size ||
            HEAD + (int64_t)CELL * columns + size > state->room - state->written)
            return FULL;
        to = row(at + 5, at + size - 1, to, head, columns);
        if (!to) return BROKEN;
        state->position += size;
        state->written = to - out;
        state->rows++;
    }
    return MORE;
}

/* The lines themselves, `prefix` before each. */
int32_t penstock_copy_lines(const uint8_t *data, struct copied *state, uint8_t *out,
                            const uint8_t *prefix, int32_t prefixed) {
    while (state->end - state->position >= 5) {
        const uint8_t *at = data + state->position;
        int64_t size = (int64_t)number(at + 1) + 1;
        uint8_t *to = out + state->written;
        if (*at != 'd') return OTHER;
        if (size < 6) return BROKEN;
        if (size > state->end - state->position) return MORE;
        if (at[size - 1] != '\n') return BROKEN;
        if (state->rows == state->most || state->written >= state->size ||
            prefixed + size > state->room - state->written)
            return FULL;
        memcpy(to, prefix, (size_t)prefixed);
        memcpy(to + prefixed, at + 5, (size_t)(size - 5));
        state->position += size;
        state->written += prefixed + size - 5;
        state->rows++;
    }
    return MORE;
}
