/* Arrays as PostgreSQL writes them: `{1,NULL,"a b"}`, `{{1,2},{3,4}}`, `[0:1]={7,8}`.
 *
 * An array with lower bounds is its text. Elements may be quoted, with backslashes; NULL without quotes is null. */
#include "messagepack.h"
#include "values.h"

/* PostgreSQL's own limit of dimensions. */
#define DIMENSIONS 6

struct list {
    struct style *style;
    const struct column *column;
    struct cursor in;
    struct buffer *out;
};

/* After the first quote: the element between the quotes, without its escapes. */
static int quoted(struct list *l, struct text *element) {
    struct buffer *scratch = &l->style->scratch;
    const uint8_t *p = l->in.at, *end = l->in.end;
    uint8_t *at;
    while (p < end && *p != '"' && *p != '\\') p++;
    *element = (struct text){l->in.at, p - l->in.at};
    if (p < end && *p == '\\') {
        scratch->size = 0;
        if (!(at = room(scratch, end - l->in.at))) return FULL;
        for (p = l->in.at; p < end && *p != '"'; p++) {
            if (*p == '\\' && ++p == end) return STRANGE;
            *at++ = *p;
        }
        *element = (struct text){scratch->data, at - scratch->data};
    }
    if (p >= end) return STRANGE;
    l->in.at = p + 1;
    return FINE;
}

/* Lists are the dimensions: an element that is an array of JSON is text, which Python makes. */
static int scalar(struct list *l, struct text raw) {
    const uint8_t *p = raw.at, *end = raw.at + raw.size;
    int32_t kind = l->column->kind;
    while (kind == KIND_DOCUMENT && p < end && (*p == ' ' || (*p >= '\t' && *p <= '\r'))) p++;
    if (kind == KIND_DOCUMENT && l->style->json && p < end && *p == '[') return STRANGE;
    return pk_scalar(l->style, kind, raw, l->out);
}

static int element(struct list *l) {
    const uint8_t *p = l->in.at, *end = l->in.end;
    struct text raw = {p, 0};
    int failed;
    if (p < end && *p == '"') {
        l->in.at++;
        failed = quoted(l, &raw);
        return failed ? failed : scalar(l, raw);
    }
    while (p < end && *p != l->column->delimiter && *p != '}' && *p != '{' && *p != '"' && *p != '\\')
        p++;
    raw.size = p - raw.at;
    l->in.at = p;
    if (!raw.size) return STRANGE;
    if (raw.size == 4 && !memcmp(raw.at, "NULL", 4)) return pk_null(l->style, l->out);
    return scalar(l, raw);
}

/* After an opening brace, up to the closing one. */
static int items(struct list *l, int depth) {
    int json = l->style->json, failed = FINE;
    int64_t start = l->out->size, count = 0;
    uint8_t c = 0;
    if (put8(l->out, '[')) return FULL;
    if (depth == 1 && peek(&l->in) == '}') {
        l->in.at++;
    } else {
        do {
            if (count++ && json && put8(l->out, ',')) return FULL;
            if (peek(&l->in) == '{') {
                if (depth == DIMENSIONS) return STRANGE;
                l->in.at++;
                failed = items(l, depth + 1);
            } else {
                failed = element(l);
            }
            if (failed) return failed;
            if (!take8(&l->in, &c)) return STRANGE;
        } while (c == l->column->delimiter);
        if (c != '}') return STRANGE;
    }
    return json ? put8(l->out, ']') : pk_header(l->out, start, count, pk_array_header);
}

int pk_array(struct style *style, const struct column *column, struct text raw, struct buffer *out) {
    struct list l = {style, column, {raw.at, raw.at + raw.size}, out};
    int failed;
    if (peek(&l.in) == '[') return STRANGE; /* is rare, and left to Python */
    if (peek(&l.in) != '{') return STRANGE;
    l.in.at++;
    if ((failed = items(&l, 1))) return failed;
    return l.in.at == l.in.end ? FINE : STRANGE;
}
