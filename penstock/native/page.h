/* One page on its way: where the kernel is in its payload, and the changes found so far.
 *
 * Python has the same structures up to `struct state`, and reads and writes the state between two
 * runs: whatever the kernel does not do itself is done there, and handed in as a row. */
#ifndef PENSTOCK_PAGE_H
#define PENSTOCK_PAGE_H

#include "values.h"

/* In place of a relation's index: a change that the tables filter drops. */
#define FILTERED (-1)
/* Outside of a transaction. */
#define NO_UNIT (-1)

struct plan {
    struct text namespace, name, version, description; /* the last for lines only */
    int64_t oid;
    int32_t columns, keys; /* how many; columns < 0: no row of it can be decoded here */
    int32_t tenant;        /* the column with the tenant, or -1 */
    int32_t reserved;
    const struct column *column;
    const int32_t *key;
};

enum { TENANT_NONE, TENANT_SAME, TENANT_FIELD };

/* What a page's changes have in common, and how to decode them. Operations: their names; the first
 * three are INSERT, UPDATE and DELETE. `lines`: images are lines of COPY, and all else is as with
 * `json`. `events`: what every event id begins with; `mark`: that of all changes. */
struct setup {
    struct text payload, backend, partition, database, tenant, events, mark;
    const struct text *operations;
    int64_t captured_at;
    int32_t streamed, json, tenant_rule, lines;
};

/* A transaction, or (without an xid) a message outside of any. */
struct unit {
    uint64_t lsn;
    int64_t committed_at;
    uint32_t xid;
    int32_t inside;
};

struct state {
    int64_t at, stop;       /* the message in hand */
    uint64_t commit_lsn;    /* of the transaction that is open */
    int64_t seen;           /* changes, with the filtered ones */
    int32_t unit, ordinal;  /* the transaction that is open, and its next change */
    int32_t first[2], last[2]; /* unit and ordinal of the first and the last change seen */
    int32_t units, rows;    /* how many there are */
    const struct unit *all_units;
};

struct row {
    int32_t unit, relation, ordinal, operation;
    int32_t collection, collection_size; /* in `collections`; -1: the relation's name */
};

/* A column of texts that may be null, as Arrow has it. */
struct texts {
    struct buffer data, ends, valid;
    int64_t nulls;
};

struct cell {
    int32_t kind; /* as on the wire: t, n, u, b */
    struct text raw;
};

struct relation {
    uint32_t oid;
    int32_t index, used;
    const struct plan *plan;
};

struct page {
    struct state state;
    struct setup setup;
    struct style style;
    struct buffer rows, units, plans, collections; /* of row, unit, const plan *, bytes */
    struct texts document_id, key, before, after, tenant, unchanged;
    struct buffer unchanged_ends; /* int32: how many names up to each row */
    struct relation *relations;   /* a hash table of a power of two */
    int32_t relation_capacity, relation_count;
    struct cell *cells[2]; /* of the old row and the new one */
    int32_t cell_capacity;
};

/* Takes one row whose texts may be NULL (null); see Python's `Row`. */
struct given {
    int32_t unit, relation, ordinal, operation;
    struct text tenant, collection, document_id, key, before, after;
    const struct text *unchanged;
    int32_t unchanged_count, reserved;
};

/* Reads the row message whose tuples begin at `c`, up to its end. */
enum { OLD, NEW };
int pk_row(struct page *page, const struct relation *relation, uint8_t tag, struct cursor c);
/* The texts of a row end here: what follows belongs to the next. */
int pk_end_text(struct texts *texts, int32_t row, int present);
int pk_end_row(struct page *page, struct row row);
/* Counts a change, filtered or not. */
void pk_seen(struct page *page, int32_t unit, int32_t ordinal);
int pk_add_unit(struct page *page, struct unit unit);

#endif
