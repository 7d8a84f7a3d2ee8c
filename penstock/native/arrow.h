/* Arrow's C data interface: https://arrow.apache.org/docs/format/CDataInterface.html */
#ifndef PENSTOCK_ARROW_H
#define PENSTOCK_ARROW_H

#include <stdint.h>

struct ArrowArray {
    int64_t length, null_count, offset, n_buffers, n_children;
    const void **buffers;
    struct ArrowArray **children;
    struct ArrowArray *dictionary;
    void (*release)(struct ArrowArray *);
    void *private_data;
};

#endif
