/* What every kernel in this library shares: how a function is made visible to the loader.
 *
 * Rules: plain C11 without Python.h, no global state, no allocation that the caller
 * does not free, no reading or writing outside of the buffers that were passed. */
#ifndef PENSTOCK_NATIVE_H
#define PENSTOCK_NATIVE_H

#include <stdint.h>

#define PENSTOCK_ABI 16

#define EXPORT __attribute__((visibility("default")))

#endif
