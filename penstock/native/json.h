/* JSON: text into JSON strings; documents checked, or turned into MessagePack. */
#ifndef PENSTOCK_JSON_H
#define PENSTOCK_JSON_H

#include "cursor.h"

/* A quoted string, escaped as orjson does; STRANGE if it is not UTF-8. */
int pk_json_string(struct text text, struct buffer *out);
/* Padded base64 in quotes. */
int pk_json_base64(struct text bytes, struct buffer *out);
/* The document as it is, if it is JSON of RFC 8259; STRANGE otherwise, or if it is very deep. */
int pk_json_copy(struct text document, struct buffer *out);
/* Whether that is FINE. */
int pk_json_check(struct text document);
/* The document as MessagePack; a number that no 64-bit integer and no double holds exactly is the
 * string of its digits. STRANGE as above, and for half surrogate pairs. */
int pk_json_to_msgpack(struct text document, struct buffer *out);

#endif
