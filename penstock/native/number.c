/* Numbers, exactly: what is read is the nearest double, what is written the shortest text.
 *
 * A double is found by one division or multiplication in 80 bits, which nearly always settles the
 * 53 bits of the result; where it does not, the C library's own conversion decides. */
#define _GNU_SOURCE
#include "number.h"

#include <float.h>
#include <locale.h>
#include <math.h>
#include <stdio.h>

#define KEPT 19 /* digits that a uint64 always holds */

static int is_digit(int c) { return c >= '0' && c <= '9'; }

static void add_digit(struct decimal *d, int *zeros, int digit) {
    if (!digit) {
        if (d->count) (*zeros)++;
        return;
    }
    if (d->count + *zeros + 1 <= KEPT) {
        for (; *zeros; (*zeros)--, d->count++) d->mantissa *= 10;
        d->mantissa = d->mantissa * 10 + (uint64_t)digit;
    }
    d->count += *zeros + 1;
    *zeros = 0;
}

static int exponent(struct cursor *c, int *value) {
    int sign = peek(c), amount = 0, digits = 0;
    if (sign == '+' || sign == '-') c->at++;
    for (; is_digit(peek(c)); c->at++, digits++)
        if (amount < 100000) amount = amount * 10 + (*c->at - '0');
    *value = sign == '-' ? -amount : amount;
    return digits ? FINE : STRANGE;
}

int pk_decimal(struct text text, struct decimal *d) {
    struct cursor c = {text.at, text.at + text.size};
    int zeros = 0, whole = 0, leading = 0, power = 0;
    *d = (struct decimal){.text = text, .whole = 1};
    if (peek(&c) == '-') d->negative = 1, c.at++;
    if (!is_digit(peek(&c)) || left(&c) > 100000) return STRANGE;
    for (; is_digit(peek(&c)); c.at++) {
        add_digit(d, &zeros, *c.at - '0');
        if (d->count) whole++;
    }
    if (peek(&c) == '.') {
        d->whole = 0;
        c.at++;
        if (!is_digit(peek(&c))) return STRANGE;
        for (; is_digit(peek(&c)); c.at++) {
            add_digit(d, &zeros, *c.at - '0');
            if (!d->count) leading++;
        }
    }
    if (peek(&c) == 'e' || peek(&c) == 'E') {
        d->whole = 0;
        c.at++;
        if (exponent(&c, &power)) return STRANGE;
    }
    d->point = whole - leading + power;
    return c.at == c.end ? FINE : STRANGE;
}

static int slow_double(const struct decimal *d, double *out) {
    char copy[64];
    locale_t plain;
    if (d->text.size >= (int64_t)sizeof copy) return STRANGE;
    memcpy(copy, d->text.at, (size_t)d->text.size);
    copy[d->text.size] = 0;
    /* glibc and musl keep this one: nothing is allocated. */
    plain = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    if (!plain) return STRANGE;
    *out = strtod_l(copy, NULL, plain);
    freelocale(plain);
    return isfinite(*out) ? FINE : STRANGE;
}

#if LDBL_MANT_DIG >= 64
/* 10^27 is the highest power that 64 bits of mantissa hold exactly. */
static const long double POWERS[] = {
    1e0L,  1e1L,  1e2L,  1e3L,  1e4L,  1e5L,  1e6L,  1e7L,  1e8L,  1e9L,  1e10L, 1e11L, 1e12L, 1e13L,
    1e14L, 1e15L, 1e16L, 1e17L, 1e18L, 1e19L, 1e20L, 1e21L, 1e22L, 1e23L, 1e24L, 1e25L, 1e26L, 1e27L,
};

static int quick_double(uint64_t mantissa, int power, double *out) {
    long double near;
    double low, high;
    if (power < -27 || power > 27) return 0;
    near = power < 0 ? mantissa / POWERS[-power] : mantissa * POWERS[power];
    low = (double)(near * (1.0L - 0x1p-62L));
    high = (double)(near * (1.0L + 0x1p-62L));
    *out = low;
    return low == high;
}
#else
static int quick_double(uint64_t mantissa, int power, double *out) {
    (void)mantissa, (void)power, (void)out;
    return 0;
}
#endif

int pk_double(const struct decimal *d, double *out) {
    if (!d->count) {
        *out = d->negative ? -0.0 : 0.0;
        return FINE;
    }
    if (d->count <= KEPT && quick_double(d->mantissa, d->point - d->count, out)) {
        if (d->negative) *out = -*out;
        return FINE;
    }
    return slow_double(d, out);
}

/* Does this many-digit number, of this power, read as `value`? When in doubt, yes. */
static int may_read_as(uint64_t mantissa, int power, double value) {
    double found;
    return !quick_double(mantissa, power, &found) || found == value;
}

#ifdef __SIZEOF_INT128__
/* The nearest decimal of `count` digits to a positive `value` near `point`; exactly, in 128 bits.
 * 0: it takes more, or two are equally near. */
static int nearest(double value, int count, int point, uint64_t *mantissa) {
    static const uint64_t tens[] = {100000000000000ULL, 1000000000000000ULL, 10000000000000000ULL,
                                    100000000000000000ULL};
    unsigned __int128 scaled, rest, half;
    uint64_t bits;
    int power = count - point, shift;
    memcpy(&bits, &value, 8);
    shift = 1075 - (int)(bits >> 52);
    if (count < 15 || count > 17 || power < 0 || power > 21 || shift < 1 || shift > 120) return 0;
    scaled = (bits & 0xFFFFFFFFFFFFFULL) | 1ULL << 52;
    for (; power > 0; power--) scaled *= 10; /* less than 2^53 * 2^70 */
    half = (unsigned __int128)1 << (shift - 1);
    rest = scaled & ((half << 1) - 1);
    *mantissa = (uint64_t)(scaled >> shift) + (rest > half);
    return rest != half && scaled >> shift < tens[count - 14] && *mantissa >= tens[count - 15] &&
           *mantissa < tens[count - 14];
}
#else
static int nearest(double value, int count, int point, uint64_t *mantissa) {
    (void)value, (void)count, (void)point, (void)mantissa;
    return 0;
}
#endif

/* Is it in the middle between two decimals of `count` digits? Then it is anybody's guess which one
 * is written. */
static int between(double value, int count) {
    char text[80];
    int size = snprintf(text, sizeof text, "%.60e", value);
    if (size < 62 || size >= (int)sizeof text || text[count + 1] != '5') return 0;
    for (int i = count + 2; i < 62; i++)
        if (text[i] != '0') return 0;
    return 1;
}

/* The same for every value, by the C library. */
static int printed(double value, int count, struct decimal *out, double *back) {
    char text[40];
    int size = snprintf(text, sizeof text, "%.*e", count - 1, value);
    if (size < 0 || size >= (int)sizeof text || between(value, count)) return STRANGE;
    if (count > 1) text[1] = '.'; /* whatever the locale has there */
    if (pk_decimal((struct text){(const uint8_t *)text, size}, out)) return STRANGE;
    return pk_double(out, back);
}

/* The nearest decimal of so many digits, as `out`; does it read as `value`? */
static int reads_back(double value, int count, int point, struct decimal *out, int *failed) {
    double back;
    uint64_t mantissa;
    if (nearest(value, count, point, &mantissa)) {
        while (mantissa % 10 == 0) mantissa /= 10, count--;
        *out = (struct decimal){.count = count, .point = point, .mantissa = mantissa};
        *failed = FINE;
        if (quick_double(mantissa, point - count, &back)) return back == value;
    }
    *failed = printed(value, count, out, &back);
    return *failed || back == value;
}

int pk_shortest(const struct decimal *d, double value, struct decimal *out) {
    uint64_t mantissa = d->mantissa;
    int count = d->count, power = d->point - d->count, failed = FINE;
    *out = *d;
    /* Every decimal of 15 digits has a double of its own (as long as it is a normal one). */
    if (count <= 15) return fabs(value) >= DBL_MIN || !count ? FINE : STRANGE;
    if (count > 17 || fabs(value) < DBL_MIN) return STRANGE;
    value = fabs(value);
    /* If a shorter one reads as `value`, then so does one of the two next to `d`. */
    for (; count > 15; count--) {
        mantissa /= 10;
        power++;
        if (!may_read_as(mantissa, power, value) && !may_read_as(mantissa + 1, power, value)) break;
    }
    while (!reads_back(value, count, d->point, out, &failed))
        if (++count > 17) return STRANGE;
    out->negative = d->negative;
    out->text = d->text;
    out->whole = d->whole;
    return failed;
}

int pk_integer(struct text text, int *negative, uint64_t *amount) {
    const uint8_t *p = text.at, *end = text.at + text.size;
    uint64_t value = 0;
    *negative = p < end && *p == '-';
    p += *negative;
    if (p == end || end - p > 20) return STRANGE;
    for (; p < end; p++) {
        unsigned digit = (unsigned)*p - '0';
        if (digit > 9 || value > UINT64_MAX / 10) return STRANGE;
        value *= 10;
        if (value > UINT64_MAX - digit) return STRANGE;
        value += digit;
    }
    *amount = value;
    return *negative && value > (uint64_t)INT64_MAX + 1 ? STRANGE : FINE;
}

uint8_t *pk_digits(uint8_t *at, uint64_t value) {
    uint8_t digits[20];
    int size = 0;
    do {
        digits[size++] = (uint8_t)('0' + value % 10);
        value /= 10;
    } while (value);
    while (size) *at++ = digits[--size];
    return at;
}

uint8_t *pk_write_double(uint8_t *at, const struct decimal *d) {
    uint8_t digits[20];
    int size, whole = d->point;
    if (d->negative) *at++ = '-';
    if (!d->count) return memcpy(at, "0.0", 3), at + 3;
    if (whole < -4 || whole > 16) return NULL;
    size = (int)(pk_digits(digits, d->mantissa) - digits);
    if (whole <= 0) {
        *at++ = '0', *at++ = '.';
        for (int i = whole; i < 0; i++) *at++ = '0';
        return memcpy(at, digits, (size_t)size), at + size;
    }
    for (int i = 0; i < whole; i++) *at++ = i < size ? digits[i] : '0';
    *at++ = '.';
    if (size <= whole) return *at = '0', at + 1;
    return memcpy(at, digits + whole, (size_t)(size - whole)), at + size - whole;
}
