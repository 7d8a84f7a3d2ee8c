/* Numbers: decimal text to 64-bit integers and doubles, and back. */
#ifndef PENSTOCK_NUMBER_H
#define PENSTOCK_NUMBER_H

#include "cursor.h"

/* A decimal, read strictly: [-]digits[.digits][e[+-]digits], all of the text. Its value is
 * 0.d1d2..dn times ten to the power `point`, without zeros at either end; `count` is 0 for zero. */
struct decimal {
    struct text text;
    int negative, whole; /* whole: written without a dot and an exponent */
    int count;           /* of significant digits; more than 19 are counted, not kept */
    int point;
    uint64_t mantissa; /* the digits, if they are at most 19 */
};

/* STRANGE: no such decimal. */
int pk_decimal(struct text text, struct decimal *out);
/* The nearest double; STRANGE if it is too large for one, or too long to tell. */
int pk_double(const struct decimal *d, double *out);
/* The shortest decimal that reads as `value`, which `d` does; of those the nearest. STRANGE if `d`
 * has more digits than a double can. */
int pk_shortest(const struct decimal *d, double value, struct decimal *out);
/* `negative`, and the amount; STRANGE if 64 bits don't hold it. */
int pk_integer(struct text text, int *negative, uint64_t *amount);

/* At most 20 bytes. */
uint8_t *pk_digits(uint8_t *at, uint64_t value);
/* As orjson writes it, in at most 40 bytes; NULL for what it writes with an exponent: that
 * differs between its versions. */
uint8_t *pk_write_double(uint8_t *at, const struct decimal *shortest);

#endif
