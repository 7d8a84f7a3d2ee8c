/* Column values: PostgreSQL's text form -> the value in a row image.
 *
 * Strict: what is not exactly as a server with our session settings writes it, or is rare (years
 * before 1 and beyond 9999), is STRANGE, and Python decides. */
#ifndef PENSTOCK_VALUES_H
#define PENSTOCK_VALUES_H

#include "cursor.h"

enum kind {
    KIND_BOOLEAN = 1,
    KIND_INTEGER,
    KIND_FLOAT,
    KIND_TEXT,
    KIND_BYTEA,
    KIND_DOCUMENT,
    KIND_DATE,
    KIND_TIMESTAMP,
    KIND_TIMESTAMPTZ,
};

/* KEY: a K tuple has it. IDENTITY: the image `key` has it. */
enum { FLAG_ARRAY = 1, FLAG_KEY = 2, FLAG_IDENTITY = 4 };

/* One column of a relation. `label` is the name as an image of the page's kind has it; `delimiter`
 * parts an array's elements, whose kind it then is. Python has the same structure. */
struct column {
    int32_t kind, flags, delimiter, reserved;
    struct text name, label;
};

/* How an image is written, and room for a value on its way. */
struct style {
    int json;
    struct buffer scratch;
};

/* One value that is not null. */
int pk_value(struct style *style, const struct column *column, struct text raw, struct buffer *out);
/* One value of this kind, whether the column is an array or not. */
int pk_scalar(struct style *style, int32_t kind, struct text raw, struct buffer *out);
int pk_array(struct style *style, const struct column *column, struct text raw, struct buffer *out);
int pk_null(const struct style *style, struct buffer *out);
/* What a document id says of a single key: text as it is, everything else as JSON. */
int pk_plain(struct style *style, const struct column *column, struct text raw, struct buffer *out);

/* One cell of a line of COPY; STRANGE if it is not UTF-8. */
int pk_cell(struct text raw, struct buffer *out);

#endif
