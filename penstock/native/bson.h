/* BSON: its elements, and its values as JSON or MessagePack. What is not of the ordinary types, or is
 * broken anywhere, is STRANGE. */
#ifndef PENSTOCK_BSON_H
#define PENSTOCK_BSON_H

#include "cursor.h"

/* Documents inside of each other, and names of those that are open; more are STRANGE. */
enum { DEEPEST = 64, NAMES = 512 };
enum { DOUBLE = 1, STRING, DOCUMENT, ARRAY, BINARY, OBJECT_ID = 7, BOOLEAN, DATE, NOTHING,
       INT32 = 16, TIMESTAMP, INT64 };
#define SAFE (((int64_t)1 << 53) - 1)
/* Milliseconds: the years 1 to 9999. */
#define YEAR_1 (-62135596800000)
#define YEAR_10000 253402300800000

struct walk {
    struct buffer *out;
    int json, depth, names;
    struct text name[NAMES];
};

/* An element's type, name, and value, which begins at `at`. */
struct element {
    uint8_t type;
    struct text name;
    struct cursor value;
};

uint64_t bson_little(const uint8_t *p, int size);
int bson_is(struct text text, const char *name);
/* The next element's type and name; its value is next. */
int bson_take_name(struct cursor *c, uint8_t *type, struct text *name);
/* What is inside of a document or an array. */
int bson_enter(struct cursor *c, struct cursor *inside);
int bson_take_string(struct cursor *c, struct text *text);
int bson_put_text(struct walk *w, struct text text);
int bson_put_word(struct walk *w, const char *word);
/* The head of a map of one, with its name. */
int bson_put_single(struct walk *w, const char *name);
int bson_put_end(struct walk *w);
uint8_t *bson_decimal(uint8_t *at, int64_t value);
int bson_put_number(struct walk *w, int64_t value);
struct text bson_hex_text(uint8_t *out, const uint8_t *bytes);
struct text bson_uuid_text(uint8_t *out, const uint8_t *p);
int bson_document(struct walk *w, struct cursor *c, int is_array);
int bson_value(struct walk *w, uint8_t type, struct cursor *c);
/* A name in a document: STRANGE where it is there already, or makes it a reference. */
int bson_put_name(struct walk *w, struct text name, int first);

#endif
