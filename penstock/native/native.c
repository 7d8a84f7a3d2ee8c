/* The version that the loader compares: this library and its Python code must agree. */
#include "native.h"

#ifndef PENSTOCK_DIGEST
#define PENSTOCK_DIGEST ""
#endif

EXPORT int32_t penstock_abi(void);
EXPORT const char *penstock_digest(void);

int32_t penstock_abi(void) { return PENSTOCK_ABI; }

const char *penstock_digest(void) { return PENSTOCK_DIGEST; }
