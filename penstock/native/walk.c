/* The walk over a replication stream as it comes: it reads a length, a tag and a table of each
 * message, and never a row. The same as `rows_ahead` in feeds/postgres/walk.py does, and what the
 * framer does with whole transactions.
 *
 * `data` has 35 bytes after `end`: the head of a short message can be read at the very end. */
#include <string.h>

#include "native.h"

/* `d`, a length, `w`, two LSNs and a time; a message's tag, and a row's table. */
#define TAG 30
#define BEGIN (TAG + 21)
#define COMMIT (TAG + 26)
#define KEEPALIVE 23 /* `d`, a length, `k`, an LSN, a time, whether an answer is wanted */

#define TABLES 64

struct transaction {
    uint64_t lsn, rows, end;
};

struct walk {
    int64_t position, end; /* where to begin, and where it ended; the end of what came */
    int64_t most;          /* rows */
    int64_t room;          /* bytes: no row is begun after them */
    int64_t rows;          /* that were passed */
    int64_t transactions, most_transactions;
    int64_t first_row; /* where the first one begins */
    int64_t first_at;  /* when its transaction was committed, as PostgreSQL counts */
    uint64_t before_lsn; /* the end of what has no rows and came first, or 0 */
    uint64_t end_lsn;    /* of the last transaction */
    uint32_t first_xid;
    int32_t is_fresh; /* what comes before the first row takes no room */
    int32_t tables;
    int32_t keepalives, asked; /* that were passed; whether one of them wants an answer */
    int64_t sent_at;           /* of the last keepalive, as PostgreSQL counts */
    uint8_t table[TABLES][4];
};

EXPORT void penstock_walk_rows(const uint8_t *data, struct walk *walk);
EXPORT void penstock_walk_transactions(const uint8_t *data, struct walk *walk,
                                       struct transaction *found);

static uint64_t number(const uint8_t *at, int bytes) {
    uint64_t found = 0;
    for (int i = 0; i < bytes; i++) found = found << 8 | at[i];
    return found;
}

/* Where a message ends that is whole and has this tag; 0 if it is not so. */
static int64_t after(const uint8_t *data, int64_t at, int64_t end) {
    int64_t stop;
    if (at > end - 5) return 0;
    stop = at + 1 + (int64_t)number(data + at + 1, 4);
    return stop > end || data[at] != 'd' || data[at + 5] != 'w' ? 0 : stop;
}

static int64_t after_row(const uint8_t *data, int64_t at, int64_t end) {
    int64_t stop = after(data, at, end);
    uint8_t tag = stop ? data[at + TAG] : 0;
    return tag == 'I' || tag == 'U' || tag == 'D' ? stop : 0;
}

/* Notes the table of the row at `at`; 0 if there is no place for it. `last` is of the row before. */
static int note(const uint8_t *data, int64_t at, struct walk *walk, uint8_t last[4]) {
    const uint8_t *oid = data + at + TAG + 1;
    if (walk->tables && !memcmp(oid, last, 4)) return 1;
    for (int32_t i = 0; i < walk->tables; i++)
        if (!memcmp(walk->table[i], oid, 4)) {
            memcpy(last, oid, 4);
            return 1;
        }
    if (walk->tables == TABLES) return 0;
    memcpy(walk->table[walk->tables++], oid, 4);
    memcpy(last, oid, 4);
    return 1;
}

/* Over row messages, until anything else, `most`, the first that ends after `room`, or one of a
 * table too many. */
void penstock_walk_rows(const uint8_t *data, struct walk *walk) {
    int64_t at = walk->position, full = at + walk->room, stop;
    uint8_t last[4] = {0};
    walk->rows = 0;
    walk->tables = 0;
    while (walk->rows < walk->most && (stop = after_row(data, at, walk->end)) &&
           note(data, at, walk, last)) {
        at = stop;
        walk->rows++;
        if (at >= full) break;
    }
    walk->position = at;
}

/* Everything up to `lsn` is over, and has no rows. */
static void moved(struct walk *walk, struct transaction *found, uint64_t lsn) {
    uint64_t *end = walk->transactions ? &found[walk->transactions - 1].end : &walk->before_lsn;
    if (lsn > *end) *end = lsn;
    if (lsn > walk->end_lsn) walk->end_lsn = lsn;
}

/* Passes keepalives that begin before `full`; returns where they end. */
static int64_t after_keepalives(const uint8_t *data, int64_t at, int64_t full, struct walk *walk,
                                struct transaction *found) {
    if (walk->is_fresh && !walk->rows) full = walk->end;
    while (at < full && at + KEEPALIVE <= walk->end && data[at] == 'd' && data[at + 5] == 'k' &&
           number(data + at + 1, 4) == KEEPALIVE - 1) {
        moved(walk, found, number(data + at + 6, 8));
        walk->sent_at = (int64_t)number(data + at + 14, 8);
        walk->asked |= data[at + 22];
        walk->keepalives++;
        at += KEEPALIVE;
    }
    return at;
}

/* Over whole transactions of nothing but rows, for as long as these do not fill the page, and the
 * keepalives between them. */
void penstock_walk_transactions(const uint8_t *data, struct walk *walk, struct transaction *found) {
    int64_t at = walk->position, full = at + walk->room;
    uint8_t last[4] = {0};
    walk->rows = walk->transactions = 0;
    walk->before_lsn = walk->end_lsn = 0;
    walk->tables = walk->keepalives = walk->asked = 0;
    while (walk->transactions < walk->most_transactions) {
        struct transaction one = {0};
        int32_t tables = walk->tables;
        int64_t begin, row, stop;
        begin = walk->position = at = after_keepalives(data, at, full, walk, found);
        row = after(data, at, walk->end);
        if (row != begin + BEGIN || data[begin + TAG] != 'B') break;
        one.lsn = number(data + begin + TAG + 1, 8);
        if (walk->is_fresh && !walk->rows)
            full = row + walk->room;
        else if (row >= full)
            break;
        at = row;
        while ((stop = after_row(data, at, walk->end)) && stop < full &&
               walk->rows + (int64_t)one.rows + 1 < walk->most && note(data, at, walk, last)) {
            at = stop;
            one.rows++;
        }
        stop = after(data, at, walk->end);
        if (stop != at + COMMIT || data[at + TAG] != 'C') {
            walk->tables = tables;
            break;
        }
        one.end = number(data + at + TAG + 10, 8);
        if (one.rows && !walk->rows) {
            walk->first_row = row;
            walk->first_at = (int64_t)number(data + begin + TAG + 9, 8);
            walk->first_xid = (uint32_t)number(data + begin + TAG + 17, 4);
        }
        at = stop;
        walk->position = at;
        walk->rows += (int64_t)one.rows;
        if (one.rows) found[walk->transactions++] = one;
        moved(walk, found, one.end);
        if (walk->rows && at >= full) break;
    }
}
