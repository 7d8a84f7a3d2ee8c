"""The shop's actions: each is a few statements of one transaction.

An action returns what it wrote, in PostgreSQL's order (from RETURNING). It reads the known keys
from `Shop`, which the workload updates after COMMIT.
"""

from collections.abc import Callable
from typing import Any

import psycopg

from penstock.demo.ledger import Written
from penstock.demo.workload import Shop

Cursor = psycopg.Cursor[tuple[Any, ...]]


Action = Callable[[Shop, Cursor], list[Written]]


def sign_up(shop: Shop, cursor: Cursor) -> list[Written]:
    """One to three new customers, more at higher rates."""
    statement = """
        INSERT INTO customers (email, name, vip, credit, score, tags, preferences, photo, birthday,
                               notes)
        SELECT gen_random_uuid() || '@example.org', 'Ünïque ' || n || E' O\\'Neill 🛒',
               random() < 0.1, (random() * 1000)::numeric(12, 2),
               CASE WHEN random() < 0.9 THEN random() * 1e6 WHEN random() < 0.5 THEN 'NaN' END,
               ARRAY['new', NULL, 'a "quoted", one', ''],
               jsonb_build_object('size', n, 'news', random() < 0.5,
                                  'nested', '[1, null, {"a": 2.5}]'::jsonb),
               decode(md5(random()::text), 'hex'), DATE '1950-01-01' + (random() * 20000)::int,
               CASE WHEN random() < 0.3 THEN repeat(md5(random()::text), 100) END
        FROM generate_series(1, %s) AS n RETURNING id"""
    return _rows(cursor, statement, shop.random.randint(1, 3) * shop.scale)


def place_order(shop: Shop, cursor: Cursor) -> list[Written]:
    """A customer orders: an order, its items, and the customer's credit, in one transaction."""
    customers = _some_customers(shop)
    statement = """
        INSERT INTO orders (customer_id, total, address, gift, deliver_on, deliver_at, patience,
                            slot, seen_at)
        SELECT customer, (random() * 500)::numeric(14, 4),
               '{"street": "Müllerstraße 1", "floor": null}', NULLIF(random() < 0.3, false),
               current_date + 3, TIME '09:30:00.25',
               make_interval(days => 2, mins => (random() * 90)::int), int4range(9, 17),
               localtimestamp
        FROM unnest(%s::bigint[]) AS customer RETURNING id"""
    orders = _rows(cursor, statement, customers)
    statement = """
        INSERT INTO order_items (order_id, line, sku, quantity, price, weight, sizes, remark)
        SELECT id, n, 'sku-' || n, (random() * 9)::int, (random() * 99)::numeric(10, 2),
               random() * 9, ARRAY[[n, 2], [NULL, 4]], CASE WHEN n = 1 THEN 'as it is' END
        FROM unnest(%s::bigint[]) AS id, generate_series(1, %s) AS n RETURNING order_id, line"""
    lines = shop.random.randint(1, 5)
    items = _rows(cursor, statement, [order.key[0] for order in orders], lines)
    statement = """
        UPDATE customers SET credit = credit - 1.25, score = random()
        WHERE id = ANY(%s) RETURNING id"""
    credit = _rows(cursor, statement, customers)
    return [*orders, *items, *credit]


def pay(shop: Shop, cursor: Cursor) -> list[Written]:
    """A few orders are paid or shipped, in one statement."""
    statement = """
        UPDATE orders SET total = total + 0.0001,
               status = CASE status WHEN 'new' THEN 'paid' ELSE 'shipped' END::order_status
        WHERE id = ANY(%s) RETURNING id"""
    return _rows(cursor, statement, _some_orders(shop, 3))


def change_quantities(shop: Shop, cursor: Cursor) -> list[Written]:
    """Every item of an order."""
    statement = """
        UPDATE order_items SET quantity = quantity + 1, remark = NULLIF(remark, 'as it is')
        WHERE order_id = ANY(%s) RETURNING order_id, line"""
    return _rows(cursor, statement, _some_orders(shop))


def renumber(shop: Shop, cursor: Cursor) -> list[Written]:
    """The first item of an order becomes its last: its key changes."""
    statement = """
        UPDATE order_items AS item SET line = ends.last + 1
        FROM (SELECT order_id, min(line) AS first, max(line) AS last FROM order_items
              WHERE order_id = ANY(%s) GROUP BY order_id) AS ends
        WHERE item.order_id = ends.order_id AND item.line = ends.first
        RETURNING item.order_id, item.line"""
    return _rows(cursor, statement, _some_orders(shop))


def cancel(shop: Shop, cursor: Cursor) -> list[Written]:
    """Deletes an order, after its items."""
    orders = _some_orders(shop)
    items = "DELETE FROM order_items WHERE order_id = ANY(%s) RETURNING order_id, line"
    whole = "DELETE FROM orders WHERE id = ANY(%s) RETURNING id"
    return [
        *_rows(cursor, items, orders),
        *_rows(cursor, whole, orders),
    ]


def write_notes(shop: Shop, cursor: Cursor) -> list[Written]:
    """Writes a long text, which PostgreSQL stores out of line."""
    statement = """
        UPDATE customers SET notes = repeat(md5(random()::text), 150), photo = NULL
        WHERE id = ANY(%s) RETURNING id"""
    return _rows(cursor, statement, _some_customers(shop))


def fill_cart(shop: Shop, cursor: Cursor) -> list[Written]:
    """An upsert: an INSERT or an UPDATE."""
    cursor.execute(
        """
        INSERT INTO carts (id, contents) VALUES (%s, '{"items": []}') ON CONFLICT (id) DO UPDATE
        SET contents = jsonb_build_object('items', jsonb_build_array(random(), NULL, 'x')),
            touched_at = clock_timestamp() RETURNING id, xmax = 0""",
        [shop.random.randint(1, 40)],
    )
    return [
        Written("INSERT" if inserted else "UPDATE", "carts", (cart,))
        for cart, inserted in cursor.fetchall()
    ]


def clear_carts(shop: Shop, cursor: Cursor) -> list[Written]:
    """TRUNCATE: one change for the whole table."""
    cursor.execute("TRUNCATE carts")
    return [Written("TRUNCATE", "carts", ())]


def import_order(shop: Shop, cursor: Cursor) -> list[Written]:
    """A COPY: many rows with one place in the log."""
    statement = "INSERT INTO orders (customer_id, address) VALUES (%s, '[]') RETURNING id"
    written = _rows(cursor, statement, shop.some("customers")[0])
    order = written[0].key[0]
    with cursor.copy("COPY order_items (order_id, line, sku, quantity, price) FROM STDIN") as copy:
        for line in range(1, 20 * shop.scale + 1):
            copy.write_row((order, line, f"sku\t{line}\\", line, "9.90"))
            written.append(Written("INSERT", "order_items", (order, line)))
    return written


def change_half_a_mind(shop: Shop, cursor: Cursor) -> list[Written]:
    """Rolls back to a savepoint: only what was written outside of it is committed."""
    kept = sign_up(shop, cursor)
    cursor.execute("SAVEPOINT second_thoughts")
    sign_up(shop, cursor)
    cursor.execute("ROLLBACK TO SAVEPOINT second_thoughts")
    return [*kept, *fill_cart(shop, cursor)]


def abandon(shop: Shop, cursor: Cursor) -> list[Written]:
    """A transaction that the workload rolls back."""
    return [*sign_up(shop, cursor), *place_order(shop, cursor), *cancel(shop, cursor)]


# action -> how often, relative to the others
ACTIONS: dict[Action, int] = {
    sign_up: 10,
    place_order: 30,
    pay: 15,
    change_quantities: 10,
    renumber: 5,
    cancel: 6,
    write_notes: 5,
    fill_cart: 8,
    clear_carts: 1,
    import_order: 2,
    change_half_a_mind: 3,
}


def _rows(cursor: Cursor, statement: str, *params: object) -> list[Written]:
    """Runs a statement that returns the keys of the rows it touched, in order."""
    operation, *words = statement.split(None, 3)
    table = words[0] if operation == "UPDATE" else words[1]
    cursor.execute(statement.encode(), params)
    return [Written(operation, table, tuple(row)) for row in cursor.fetchall()]


def _some_orders(shop: Shop, count: int = 1) -> list[int]:
    """About `count` orders times the scale, each once; sorted, as locks are then taken."""
    known = shop.rows["orders"]
    return sorted({shop.some("orders")[0] for _ in range(count * shop.scale) if known})


def _some_customers(shop: Shop) -> list[int]:
    """`scale` customers; one may be there twice."""
    return [shop.some("customers")[0] for _ in range(shop.scale)]
