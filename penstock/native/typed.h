/* PostgreSQL's text of times and numbers -> Arrow's values, for typed.c. What is not exactly as a
 * server with our session settings writes it is STRANGE. */
#ifndef PENSTOCK_TYPED_H
#define PENSTOCK_TYPED_H

#include <math.h>

#include "number.h"

/* The next `count` digits. */
static inline int digits(struct cursor *c, int count, int64_t *value) {
    const uint8_t *p = take(c, count);
    if (!p) return STRANGE;
    for (*value = 0; count--; p++) {
        if (*p < '0' || *p > '9') return STRANGE;
        *value = *value * 10 + *p - '0';
    }
    return FINE;
}

static inline int sign(struct cursor *c, uint8_t wanted) {
    uint8_t found;
    return take8(c, &found) && found == wanted ? FINE : STRANGE;
}

/* Days since 1970 of a date of the years 1 to 9999; the calendar is Howard Hinnant's. */
static inline int days(struct cursor *c, int64_t *value) {
    static const uint8_t lengths[] = {31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
    int64_t year, month, day;
    if (digits(c, 4, &year) || sign(c, '-') || digits(c, 2, &month) || sign(c, '-') ||
        digits(c, 2, &day) || !year || month < 1 || month > 12 || !day)
        return STRANGE;
    int is_leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    if (day > lengths[month - 1] + (month == 2 && is_leap)) return STRANGE;
    int64_t y = year - (month <= 2), era = y / 400, of_era = y - era * 400;
    int64_t of_year = (153 * (month > 2 ? month - 3 : month + 9) + 2) / 5 + day - 1;
    *value = era * 146097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719468;
    return FINE;
}

static inline int micros(struct cursor *c, int has_zone, int64_t *value) {
    int64_t date, hour, minute, second, fraction = 0;
    if (days(c, &date) || sign(c, ' ') || digits(c, 2, &hour) || sign(c, ':') ||
        digits(c, 2, &minute) || sign(c, ':') || digits(c, 2, &second) || hour > 23 ||
        minute > 59 || second > 59)
        return STRANGE;
    if (peek(c) == '.') {
        const uint8_t *first = ++c->at;
        for (; c->at < c->end && c->at - first < 7 && *c->at >= '0' && *c->at <= '9'; c->at++)
            fraction = fraction * 10 + *c->at - '0';
        if (c->at == first || c->at - first > 6) return STRANGE;
        for (int64_t n = c->at - first; n < 6; n++) fraction *= 10;
    }
    if (has_zone && (sign(c, '+') || sign(c, '0') || sign(c, '0'))) return STRANGE;
    *value = (((date * 24 + hour) * 60 + minute) * 60 + second) * 1000000 + fraction;
    return FINE;
}

static inline int whole(struct text text, int bits, int64_t *value) {
    int negative;
    uint64_t amount, most = (uint64_t)1 << (bits - 1);
    if (pk_integer(text, &negative, &amount) || amount > most - !negative) return STRANGE;
    *value = (int64_t)(negative ? 0 - amount : amount);
    return FINE;
}

static inline int nibble(uint8_t c) {
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static inline int real(struct text text, double *value) {
    struct decimal found;
    if (!pk_decimal(text, &found)) return pk_double(&found, value);
    if (text.size == 3 && !memcmp(text.at, "NaN", 3)) return *value = NAN, FINE;
    if (text.size == 8 && !memcmp(text.at, "Infinity", 8)) return *value = INFINITY, FINE;
    if (text.size == 9 && !memcmp(text.at, "-Infinity", 9)) return *value = -INFINITY, FINE;
    return STRANGE;
}

#endif
