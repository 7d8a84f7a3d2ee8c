"""What the differential test does to tables: a `Kind` for each way in which rows, columns, keys or
names change. Adding a recipe here is all that it takes to try it with everything else.

A recipe is a sequence of transactions that leaves its tables as it found them, but for their rows,
so that it may come again; `K` is one number in all of them, and `NEW` one that is probably no key
yet. `--snapshot TABLE` asks for one, the documented remedy for what no catalogue shows.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """`create` makes and publishes the tables, `writes` are ordinary statements; `since` the first
    server version that has it, `extension` what the server must have."""

    create: str
    writes: tuple[str, ...]
    recipes: tuple[tuple[str, ...], ...] = ()
    since: int = 15
    extension: str = ""


# As ALTER PUBLICATION ... SET TABLE with all tables: the others stay as they are.
PRELUDE = """
CREATE PUBLICATION p WITH (publish_via_partition_root = true);
CREATE FUNCTION publish(name text, spec text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE others text; BEGIN
  SELECT string_agg(concat_ws(' ', prrelid::regclass, (
      SELECT '(' || string_agg(quote_ident(attname), ', ') || ')' FROM pg_attribute
      WHERE attrelid = prrelid AND attnum = ANY (prattrs)
    ), 'WHERE (' || pg_get_expr(prqual, prrelid) || ')'), ', ') INTO others
  FROM pg_publication_rel WHERE prrelid <> name::regclass
    AND prpubid = (SELECT oid FROM pg_publication WHERE pubname = 'p');
  EXECUTE 'ALTER PUBLICATION p SET TABLE ' || concat_ws(', ', others, name || ' ' || spec);
END $$;
"""

_ROWS = Kind(
    create="""
    CREATE TABLE plain (id int PRIMARY KEY, note text, n int);
    CREATE TABLE pairs (a int, b text, large text, n int, PRIMARY KEY (a, b));
    ALTER TABLE pairs ALTER COLUMN large SET STORAGE EXTERNAL;
    CREATE TABLE whole (id int PRIMARY KEY, large text, n int);
    ALTER TABLE whole ALTER COLUMN large SET STORAGE EXTERNAL;
    ALTER TABLE whole REPLICA IDENTITY FULL;
    CREATE TABLE bag (a int, b text);
    ALTER TABLE bag REPLICA IDENTITY FULL;
    INSERT INTO plain SELECT n, 'there before', 0 FROM generate_series(1, 3000) n;
    INSERT INTO pairs SELECT n, 'b', repeat('x', 3000) || n, 0 FROM generate_series(1, 200) n;
    INSERT INTO whole SELECT n, repeat('y', 3000) || n, 0 FROM generate_series(1, 200) n;
    INSERT INTO bag SELECT n % 20, 'there before' FROM generate_series(1, 200) n;
    ALTER PUBLICATION p ADD TABLE plain, pairs, whole, bag""",
    writes=(
        "INSERT INTO plain (id, note, n) VALUES (NEW, 'new', K) ON CONFLICT DO NOTHING",
        "UPDATE plain SET n = n + 1 WHERE id % 97 = K % 97",
        "UPDATE plain SET id = NEW WHERE id = K",
        "DELETE FROM plain WHERE id % 101 = K % 101",
        "UPDATE pairs SET n = n + 1 WHERE a % 11 = K % 11",
        "UPDATE pairs SET b = b || 'K' WHERE a = K % 200 AND length(b) < 40",
        "UPDATE pairs SET large = repeat('z', 3000) || K WHERE a = K % 200",
        "DELETE FROM pairs WHERE a = K % 200",
        "INSERT INTO pairs VALUES (NEW, 'new', repeat('w', 3000), 0) ON CONFLICT DO NOTHING",
        "UPDATE whole SET n = n + 1 WHERE id % 13 = K % 13",
        "UPDATE whole SET id = NEW WHERE id = K % 200",
        "INSERT INTO bag SELECT K % 20, 'x' FROM generate_series(1, 3)",
        "UPDATE bag SET b = b || 'y' WHERE a = K % 20 AND length(b) < 20",
        "DELETE FROM bag WHERE ctid = (SELECT max(ctid) FROM bag WHERE a = K % 20)",
    ),
    recipes=(
        ("TRUNCATE bag",),
        ("TRUNCATE plain, pairs",),
        ("ALTER TABLE plain ADD COLUMN cK text", "ALTER TABLE plain DROP COLUMN cK"),
        ("ALTER TABLE plain ADD COLUMN cK int NOT NULL DEFAULT K",
         "ALTER TABLE plain DROP COLUMN cK"),
        ("ALTER TABLE pairs ADD COLUMN cK text; ALTER TABLE pairs DROP COLUMN cK",),
        ("ALTER TABLE pairs ALTER COLUMN n TYPE bigint", "ALTER TABLE pairs ALTER n TYPE int"),
        ("ALTER TABLE whole RENAME n TO nK; ALTER TABLE whole RENAME nK TO n",),
        ("ALTER TABLE bag ADD COLUMN cK int", "ALTER TABLE bag DROP COLUMN cK"),
    ),
)  # fmt: skip

_LISTED = "ALTER PUBLICATION p DROP TABLE listed; ALTER PUBLICATION p ADD TABLE listed"
_FILTERED = "ALTER PUBLICATION p DROP TABLE filtered; ALTER PUBLICATION p ADD TABLE filtered"
_PUBLICATION = Kind(
    create="""
    CREATE TABLE listed (id int PRIMARY KEY, a int, b text DEFAULT 'b', email text DEFAULT 'e');
    CREATE TABLE filtered (id int PRIMARY KEY, a int, note text);
    ALTER TABLE filtered REPLICA IDENTITY FULL;
    INSERT INTO listed SELECT n, n, 'b' || n, 'e' || n FROM generate_series(1, 50) n;
    INSERT INTO filtered SELECT n, n, 'there before' FROM generate_series(1, 50) n;
    ALTER PUBLICATION p ADD TABLE listed, filtered""",
    writes=(
        "INSERT INTO listed (id, a) VALUES (NEW, K) ON CONFLICT DO NOTHING",
        "UPDATE listed SET a = a + 1, email = 'e' || K WHERE id % 7 = K % 7",
        "UPDATE listed SET b = 'bK' WHERE id % 5 = K % 5",
        "DELETE FROM listed WHERE id % 23 = K % 23",
        "INSERT INTO filtered VALUES (NEW, K, 'new') ON CONFLICT DO NOTHING",
        "UPDATE filtered SET a = a + 1 WHERE id % 7 = K % 7",
        "DELETE FROM filtered WHERE id % 23 = K % 23",
    ),
    recipes=(
        (f"{_LISTED} (id, a)", "UPDATE listed SET b = 'unseen K' WHERE id % 2 = K % 2", _LISTED),
        ("SELECT publish('listed', '(id, email)')", "SELECT publish('listed', '(id, a, email)')",
         "SELECT publish('listed', '')"),
        (f"{_FILTERED} WHERE (a % 2 = 0)", f"{_FILTERED} WHERE (a % 3 = 0)", _FILTERED),
        ("SELECT publish('filtered', 'WHERE (a % 2 = 1)')",
         "SELECT publish('filtered', '(id, a) WHERE (a % 2 = 0)')",
         "SELECT publish('filtered', '')"),
        ("ALTER PUBLICATION p DROP TABLE listed", "UPDATE listed SET a = K WHERE id % 3 = K % 3",
         "DELETE FROM listed WHERE id % 19 = K % 19", "ALTER PUBLICATION p ADD TABLE listed"),
        ("ALTER PUBLICATION p DROP TABLE listed; UPDATE listed SET a = K WHERE id % 3 = K % 3;"
         " ALTER PUBLICATION p ADD TABLE listed",),
        ("ALTER PUBLICATION p SET (publish = 'insert'); UPDATE listed SET a = K WHERE id % 3 = 0;"
         " ALTER PUBLICATION p SET (publish = 'insert, update, delete, truncate')",),
    ),
)  # fmt: skip


def _rekeyed(table: str) -> tuple[tuple[str, ...], ...]:
    """Other keys, and none; each column is made unique before it is a key."""

    def key(columns: str, more: str = "") -> str:
        same = " AND ".join(f"x.{name} = y.{name}" for name in columns.split(", "))
        return (
            f"DELETE FROM {table} x USING {table} y WHERE {same} AND x.ctid < y.ctid; ALTER TABLE"
            f" {table} DROP CONSTRAINT {table}_pkey, ADD PRIMARY KEY ({columns}) {more}"
        )  # fmt: skip

    equal = f"UPDATE {table} SET a = a % 7 WHERE b % 3 = K % 3"
    drop = f"ALTER TABLE {table} DROP CONSTRAINT {table}_pkey"
    return (
        (key("b"), equal, f"DELETE FROM {table} WHERE b % 19 = K % 19", key("a")),
        (key("a, b"), equal, key("a")),
        (key("b", "INCLUDE (n)"), equal, key("a")),
        (key("a", "INCLUDE (b, n)"), key("a")),
        (drop, f"INSERT INTO {table} VALUES (NEW, NEW, K, 'new')",
         f"ALTER TABLE {table} ADD PRIMARY KEY (a, b)", key("a")),
        (f"CREATE UNIQUE INDEX {table}_i ON {table} (a, b);"
         f" ALTER TABLE {table} REPLICA IDENTITY USING INDEX {table}_i",
         f"ALTER TABLE {table} REPLICA IDENTITY DEFAULT",
         f"ALTER TABLE {table} REPLICA IDENTITY FULL", f"DROP INDEX {table}_i;"
         f" ALTER TABLE {table} REPLICA IDENTITY {'FULL' if 'full' in table else 'DEFAULT'}"),
        (f"ALTER TABLE {table} REPLICA IDENTITY NOTHING",
         f"INSERT INTO {table} VALUES (NEW, NEW, K, 'new') ON CONFLICT DO NOTHING",
         f"ALTER TABLE {table} REPLICA IDENTITY {'FULL' if 'full' in table else 'DEFAULT'}"),
    )  # fmt: skip


def _written(table: str) -> tuple[str, ...]:
    return (
        f"INSERT INTO {table} SELECT NEW, NEW, K, 'new'"
        f" WHERE NOT EXISTS (SELECT FROM {table} WHERE a = NEW OR b = NEW)",
        f"UPDATE {table} SET n = n + 1 WHERE a % 5 = K % 5",
        f"UPDATE {table} SET a = NEW WHERE a = K % 60",
        f"UPDATE {table} SET b = NEW WHERE b = K % 60",
        f"DELETE FROM {table} WHERE a % 23 = K % 23",
    )


_KEYS = Kind(
    create="""
    CREATE TABLE keyed (a int NOT NULL, b int NOT NULL, n int, note text, PRIMARY KEY (a));
    CREATE TABLE fully (LIKE keyed INCLUDING ALL);
    ALTER TABLE fully REPLICA IDENTITY FULL;
    INSERT INTO keyed SELECT n, n, 0, 'there before' FROM generate_series(1, 60) n;
    INSERT INTO fully SELECT * FROM keyed;
    ALTER PUBLICATION p ADD TABLE keyed, fully""",
    writes=(*_written("keyed"), *_written("fully")),
    recipes=(
        *_rekeyed("keyed"), *_rekeyed("fully"),
        ("ALTER TABLE fully DROP CONSTRAINT fully_pkey",
         "INSERT INTO fully SELECT * FROM fully WHERE a % 9 = K % 9",
         "UPDATE fully SET n = K WHERE a % 18 = K % 18",
         "DELETE FROM fully x USING fully y WHERE x.a = y.a AND x.ctid < y.ctid;"
         " ALTER TABLE fully ADD PRIMARY KEY (a)"),
    ),
)  # fmt: skip

_SWAPPED = "UPDATE swaps SET pos = 2 * K % 40 - pos WHERE pos BETWEEN 0 AND 2 * K % 40"
_SWAPS = Kind(
    create="""
    CREATE TABLE swaps (pos int, name text, PRIMARY KEY (pos) DEFERRABLE);
    ALTER TABLE swaps REPLICA IDENTITY FULL;
    CREATE TABLE added (pos int, name text, PRIMARY KEY (pos) DEFERRABLE INITIALLY DEFERRED);
    INSERT INTO swaps SELECT n, 'name ' || n FROM generate_series(0, 40) n;
    INSERT INTO added SELECT * FROM swaps;
    ALTER PUBLICATION p ADD TABLE swaps, added""",
    writes=(
        _SWAPPED,
        "UPDATE swaps SET pos = pos + 1 WHERE pos >= K % 40; INSERT INTO swaps SELECT K % 40, 'K'",
        "DELETE FROM swaps WHERE pos = K % 40; UPDATE swaps SET pos = pos - 1 WHERE pos > K % 40",
        "INSERT INTO added SELECT max(pos) + 1, 'K' FROM added",
    ),
    recipes=(
        ("ALTER TABLE swaps DROP CONSTRAINT swaps_pkey, ADD PRIMARY KEY (pos)",
         "UPDATE swaps SET name = 'K' WHERE pos % 3 = K % 3",
         "ALTER TABLE swaps DROP CONSTRAINT swaps_pkey, ADD PRIMARY KEY (pos) DEFERRABLE",
         _SWAPPED),
        ("ALTER TABLE swaps ADD COLUMN cK text", _SWAPPED, "ALTER TABLE swaps DROP COLUMN cK"),
    ),
)  # fmt: skip

_PART = "PARTITION OF events FOR VALUES FROM"
_PARTITIONS = Kind(
    create=f"""
    CREATE TABLE events (id int, day int, note text, PRIMARY KEY (id, day))
      PARTITION BY RANGE (day);
    CREATE TABLE events_0 {_PART} (0) TO (10);
    CREATE TABLE events_1 {_PART} (10) TO (20);
    CREATE TABLE events_2 {_PART} (20) TO (30) PARTITION BY RANGE (id);
    CREATE TABLE events_2a PARTITION OF events_2 FOR VALUES FROM (0) TO (6000);
    CREATE TABLE events_2b PARTITION OF events_2 FOR VALUES FROM (6000) TO (10000);
    INSERT INTO events SELECT n, n % 30, 'there before' FROM generate_series(1, 120) n;
    ALTER PUBLICATION p ADD TABLE events""",
    writes=(
        "INSERT INTO events VALUES (NEW, K % 30, 'new') ON CONFLICT DO NOTHING",
        "UPDATE events SET note = 'K' WHERE id % 11 = K % 11",
        "UPDATE events SET day = (day + 10) % 30 WHERE id = K % 120",
        "DELETE FROM events WHERE id % 31 = K % 31",
    ),
    recipes=(
        ("TRUNCATE events_1",),
        ("TRUNCATE events_2",),
        ("TRUNCATE events",),
        (f"DROP TABLE events_1; CREATE TABLE events_1 {_PART} (10) TO (20)",),
        ("DROP TABLE events_1", f"CREATE TABLE events_1 {_PART} (10) TO (20)"),
        ("ALTER TABLE events DETACH PARTITION events_0", "UPDATE events_0 SET note = 'alone K'",
         "DELETE FROM events_0 WHERE id % 7 = K % 7",
         "ALTER TABLE events ATTACH PARTITION events_0 FOR VALUES FROM (0) TO (10)"),
        ("ALTER TABLE events DETACH PARTITION events_2; UPDATE events_2 SET note = 'alone K';"
         " ALTER TABLE events ATTACH PARTITION events_2 FOR VALUES FROM (20) TO (30)",),
        ("CREATE TABLE events_xK (LIKE events INCLUDING ALL);"
         " INSERT INTO events_xK SELECT n, 100, 'came' FROM generate_series(1, 9) n;"
         " ALTER TABLE events ATTACH PARTITION events_xK FOR VALUES FROM (100) TO (101)",
         # What changed of its rows is in the log, and that they go is not.
         "DROP TABLE events_xK", "--snapshot events"),
        ("ALTER PUBLICATION p SET (publish_via_partition_root = false)",
         "UPDATE events SET note = 'K' WHERE id % 5 = K % 5",
         "ALTER PUBLICATION p SET (publish_via_partition_root = true)"),
    ),
)  # fmt: skip

_NAMES = Kind(
    create="""
    CREATE SCHEMA away;
    CREATE TABLE moved (id int PRIMARY KEY, n int, note text);
    CREATE TABLE other (id int PRIMARY KEY, n int, note text);
    INSERT INTO moved SELECT n, n, 'there before' FROM generate_series(1, 50) n;
    INSERT INTO other SELECT n, -n, 'another' FROM generate_series(1, 40) n;
    ALTER PUBLICATION p ADD TABLE moved, other""",
    writes=(
        "INSERT INTO moved VALUES (NEW, K, 'new') ON CONFLICT DO NOTHING",
        "UPDATE moved SET n = n + 1 WHERE id % 7 = K % 7",
        "DELETE FROM moved WHERE id % 23 = K % 23",
        "INSERT INTO other VALUES (NEW, K, 'new') ON CONFLICT DO NOTHING",
        "UPDATE other SET n = n + 1 WHERE id % 7 = K % 7",
    ),
    recipes=(
        ("ALTER TABLE moved RENAME TO gone", "UPDATE gone SET n = K WHERE id % 3 = K % 3",
         "DELETE FROM gone WHERE id % 13 = K % 13", "ALTER TABLE gone RENAME TO moved"),
        ("ALTER TABLE moved RENAME TO gone; UPDATE gone SET n = K WHERE id % 3 = K % 3;"
         " ALTER TABLE gone RENAME TO moved",),
        ("ALTER TABLE moved SET SCHEMA away", "UPDATE away.moved SET n = K WHERE id % 3 = K % 3",
         "ALTER TABLE away.moved SET SCHEMA public"),
        ("ALTER SCHEMA away RENAME TO awayK; ALTER SCHEMA awayK RENAME TO away",),
        ("ALTER TABLE moved RENAME TO gone; ALTER TABLE other RENAME TO moved;"
         " ALTER TABLE gone RENAME TO other",),
        ("ALTER TABLE moved RENAME TO gone; CREATE TABLE moved (LIKE gone INCLUDING ALL);"
         " INSERT INTO moved SELECT id, n + 1, note FROM gone WHERE id % 9 > 0;"
         " ALTER PUBLICATION p ADD TABLE moved; DROP TABLE gone",),
        ("DROP TABLE other", "CREATE TABLE other (id int PRIMARY KEY, n int, note text);"
         " INSERT INTO other SELECT n, K, 'again' FROM generate_series(1, 30) n;"
         " ALTER PUBLICATION p ADD TABLE other"),
    ),
)  # fmt: skip

_COLUMNS = Kind(
    create="""
    CREATE TABLE cols (id int PRIMARY KEY, a int, b text, c text, v varchar(20), d numeric(9,2),
                       z text);
    INSERT INTO cols SELECT n, n, 'b' || n, 'c' || n, 'v' || n, n / 4.0, 'z'
    FROM generate_series(1, 50) n;
    ALTER PUBLICATION p ADD TABLE cols""",
    writes=(
        "INSERT INTO cols (id, a, b, c, v, d, z) VALUES (NEW, K, 'bK', 'cK', 'vK', K / 8.0, 'z')"
        " ON CONFLICT DO NOTHING",
        "UPDATE cols SET a = a + 1, d = d + 0.5 WHERE id % 7 = K % 7",
        "UPDATE cols SET b = 'bK' WHERE id % 5 = K % 5",
        "DELETE FROM cols WHERE id % 23 = K % 23",
    ),
    recipes=(
        ("ALTER TABLE cols RENAME a TO old_a; ALTER TABLE cols ADD COLUMN a int",
         "UPDATE cols SET a = K WHERE id % 3 = K % 3", "ALTER TABLE cols DROP COLUMN old_a"),
        ("ALTER TABLE cols RENAME z TO old_z; ALTER TABLE cols ADD COLUMN z text;"
         " ALTER TABLE cols DROP COLUMN old_z",),
        ("ALTER TABLE cols DROP COLUMN z; ALTER TABLE cols ADD COLUMN z text",),
        ("ALTER TABLE cols RENAME b TO x; ALTER TABLE cols RENAME c TO b;"
         " ALTER TABLE cols RENAME x TO c",),
        ("ALTER TABLE cols ADD COLUMN eK text DEFAULT 'e'; ALTER TABLE cols ALTER eK DROP DEFAULT",
         "ALTER TABLE cols DROP COLUMN eK"),
        ("ALTER TABLE cols ADD COLUMN eK timestamptz DEFAULT now()",
         "ALTER TABLE cols DROP COLUMN eK"),
        ("ALTER TABLE cols ADD COLUMN eK serial", "ALTER TABLE cols DROP COLUMN eK"),
        ("ALTER TABLE cols ADD COLUMN eK int", "ALTER TABLE cols RENAME eK TO fK",
         "ALTER TABLE cols DROP COLUMN fK"),
        ("ALTER TABLE cols ALTER a TYPE text USING 'a' || a", "UPDATE cols SET b = coalesce(a, '')",
         "ALTER TABLE cols ALTER a TYPE int USING K", "--snapshot cols"),
        ("ALTER TABLE cols ALTER v TYPE varchar(40)", "UPDATE cols SET v = v || ' longer'"
         " WHERE id % 3 = K % 3", "ALTER TABLE cols ALTER v TYPE varchar(20) USING left(v, 20)",
         "--snapshot cols"),
        ("ALTER TABLE cols ALTER d TYPE numeric(9,1)",
         "ALTER TABLE cols ALTER d TYPE numeric(9,2)", "--snapshot cols"),
        ("ALTER TABLE cols ALTER b SET NOT NULL", "ALTER TABLE cols ALTER b DROP NOT NULL"),
    ),
)  # fmt: skip

_DOMAINS = Kind(
    create="""
    CREATE DOMAIN ident AS int; CREATE DOMAIN words AS text[];
    CREATE TABLE typed (id ident PRIMARY KEY, w words, n int);
    INSERT INTO typed SELECT n, ARRAY['w' || n], 0 FROM generate_series(1, 50) n;
    ALTER PUBLICATION p ADD TABLE typed""",
    writes=(
        "INSERT INTO typed (id, w, n) VALUES (NEW, ARRAY['new', NULL], K) ON CONFLICT DO NOTHING",
        "UPDATE typed SET n = n + 1 WHERE id % 7 = K % 7",
        "UPDATE typed SET id = NEW WHERE id = K % 50",
        "DELETE FROM typed WHERE id % 23 = K % 23",
    ),
    recipes=(
        ("CREATE DOMAIN dK AS text DEFAULT 'new'; ALTER TABLE typed ADD COLUMN cK dK",
         "ALTER TABLE typed ALTER cK TYPE text; DROP DOMAIN dK",
         "ALTER TABLE typed DROP COLUMN cK"),
        ("CREATE DOMAIN dK AS int; ALTER TABLE typed ADD COLUMN cK dK",
         "UPDATE typed SET cK = K WHERE id % 3 = K % 3",
         "ALTER TABLE typed DROP COLUMN cK; DROP DOMAIN dK"),
        ("ALTER TABLE typed ALTER id TYPE int; DROP DOMAIN ident",
         "CREATE DOMAIN ident AS int; ALTER TABLE typed ALTER id TYPE ident"),
        ("ALTER TABLE typed ALTER w TYPE text[]; DROP DOMAIN words",
         "CREATE DOMAIN words AS text[]; ALTER TABLE typed ALTER w TYPE words"),
    ),
)  # fmt: skip

_NEXT = "CASE m::text WHEN 'sad' THEN 'ok' WHEN 'ok' THEN 'happy' ELSE 'sad' END"
_ENUMS = Kind(
    create="""
    CREATE TYPE mood AS ENUM ('sad', 'ok', 'happy');
    CREATE TABLE moods (id int PRIMARY KEY, m mood, ms mood[]);
    CREATE TABLE by_mood (m mood, id int, n int, PRIMARY KEY (m, id));
    INSERT INTO moods SELECT n, 'sad', '{ok,NULL}' FROM generate_series(1, 50) n;
    INSERT INTO by_mood SELECT 'happy', n, n FROM generate_series(1, 50) n;
    ALTER PUBLICATION p ADD TABLE moods, by_mood""",
    writes=(
        "INSERT INTO moods VALUES (NEW, 'ok', '{happy,sad}') ON CONFLICT DO NOTHING",
        "UPDATE moods SET m = 'happy' WHERE id % 7 = K % 7",
        "DELETE FROM moods WHERE id % 23 = K % 23",
        "INSERT INTO by_mood VALUES ('sad', NEW, K) ON CONFLICT DO NOTHING",
        "UPDATE by_mood SET m = 'ok', n = K WHERE id % 11 = K % 11",
    ),
    recipes=(
        ("CREATE TYPE mood_new AS ENUM ('sad', 'ok', 'happy'); ALTER TABLE moods ALTER m TYPE"
         f" mood_new USING ({_NEXT})::mood_new,"
         " ALTER ms TYPE mood_new[] USING ms::text::mood_new[];"
         " ALTER TABLE by_mood ALTER m TYPE mood_new USING m::text::mood_new;"
         " DROP TYPE mood; ALTER TYPE mood_new RENAME TO mood",),
        ("ALTER TYPE mood ADD VALUE IF NOT EXISTS 'other'",
         "UPDATE moods SET m = 'other' WHERE id % 5 = K % 5"),
        ("ALTER TABLE moods ALTER m TYPE text; ALTER TABLE by_mood ALTER m TYPE text",
         f"ALTER TABLE moods ALTER m TYPE mood USING ({_NEXT})::mood;"
         " ALTER TABLE by_mood ALTER m TYPE mood USING m::mood", "--snapshot moods"),
    ),
)  # fmt: skip

_CALCULATED = Kind(
    create="""
    CREATE TABLE calc (id int PRIMARY KEY, a int, g int GENERATED ALWAYS AS (a * 2) STORED);
    INSERT INTO calc SELECT n, n FROM generate_series(1, 50) n;
    ALTER PUBLICATION p ADD TABLE calc""",
    writes=(
        "INSERT INTO calc (id, a) VALUES (NEW, K) ON CONFLICT DO NOTHING",
        "UPDATE calc SET a = a + 1 WHERE id % 7 = K % 7",
        "DELETE FROM calc WHERE id % 23 = K % 23",
    ),
    recipes=(
        ("ALTER TABLE calc ALTER g DROP EXPRESSION", "UPDATE calc SET g = K WHERE id % 3 = K % 3",
         "ALTER TABLE calc DROP COLUMN g;"
         " ALTER TABLE calc ADD COLUMN g int GENERATED ALWAYS AS (a * 2) STORED"),
        ("ALTER TABLE calc ADD COLUMN hK int GENERATED ALWAYS AS (a + K) STORED",
         "ALTER TABLE calc DROP COLUMN hK"),
    ),
)  # fmt: skip

_PUBLISHED = "ALTER PUBLICATION p SET (publish_generated_columns = {})"
_GENERATED = Kind(  # columns that PostgreSQL 18 may send
    create="""
    CREATE TABLE gens (id int PRIMARY KEY, a int, g int GENERATED ALWAYS AS (a * 2) STORED);
    INSERT INTO gens SELECT n, n FROM generate_series(1, 50) n;
    ALTER PUBLICATION p ADD TABLE gens""",
    writes=(
        "INSERT INTO gens (id, a) VALUES (NEW, K) ON CONFLICT DO NOTHING",
        "UPDATE gens SET a = a + 1 WHERE id % 7 = K % 7",
    ),
    recipes=(
        (_PUBLISHED.format("stored"), "UPDATE gens SET a = K WHERE id % 3 = K % 3",
         _PUBLISHED.format("none")),
        (_PUBLISHED.format("stored"), "ALTER TABLE gens ALTER g SET EXPRESSION AS (a * K)",
         _PUBLISHED.format("none")),
    ),
    since=18,
)  # fmt: skip

_SILENT = Kind(
    create="""
    CREATE TYPE state AS ENUM ('on', 'off', 'idle');
    CREATE TABLE quiet (id int PRIMARY KEY, note text, s state);
    INSERT INTO quiet SELECT n, 'note ' || n, 'idle' FROM generate_series(1, 50) n;
    ALTER PUBLICATION p ADD TABLE quiet""",
    writes=(
        "INSERT INTO quiet VALUES (NEW, 'new', 'idle') ON CONFLICT DO NOTHING",
        "UPDATE quiet SET note = note || K WHERE id % 7 = K % 7 AND length(note) < 40",
        "UPDATE quiet SET s = 'idle' WHERE id % 11 = K % 11",
        "DELETE FROM quiet WHERE id % 23 = K % 23",
    ),
    recipes=(
        ("ALTER TABLE quiet ALTER note TYPE text USING upper(note)", "--snapshot quiet"),
        ("UPDATE quiet SET s = 'on' WHERE id % 2 = K % 2",
         "ALTER TYPE state RENAME VALUE 'on' TO 'new'; ALTER TYPE state RENAME VALUE 'off' TO 'on'",
         "ALTER TYPE state RENAME VALUE 'new' TO 'off'", "--snapshot quiet"),
    ),
)  # fmt: skip

# Type -> values, as `t::text` writes them -> what a file of SQLite has, where that differs.
ODD: dict[str, dict[str, str | None]] = {
    "date": {"0044-03-15 BC": "-000043-03-15", "0001-01-01 BC": "0000-01-01",
             "12000-12-31": "+012000-12-31", "infinity": None, "2026-02-28": None},
    "timestamp": {"4713-01-01 00:00:00 BC": "-004712-01-01T00:00:00",
                  "12000-01-01 00:00:00.5": "+012000-01-01T00:00:00.5", "-infinity": None},
    "timestamptz": {"0044-03-15 12:00:00+00 BC": "-000043-03-15T12:00:00Z",
                    "12000-01-01 00:00:00+00": "+012000-01-01T00:00:00Z", "infinity": None},
    "time": {"24:00:00": None, "23:59:59.999999": None},
    "float8": {"NaN": None, "Infinity": None, "-Infinity": None, "5e-324": None, "0.1": None},
    "float4": {"NaN": None, "-Infinity": None, "0.1": None},
    "numeric": {"NaN": None, "Infinity": None, "123456789012345678901234567890.1230": None},
    "int8": {"9007199254740993": None, "-9223372036854775808": None},
    "jsonb": {'{"n": 12345678901234567890.50, "a": [1.0]}': None, "null": None, '"null"': None,
              "1e400": None, '{"i": 9007199254740993}': None, "[]": None},
    "json": {'{"a": 1.50, "a": null}': None, "null": None, "1e400": None, '"x"': None},
    "int4[]": {"[0:1]={7,8}": None, "{}": None, "{1,NULL}": None, "{{1,2},{3,4}}": None},
    "box[]": {"{(3,4),(1,2);NULL;(1,1),(0,0)}": None},
    "text[]": {'{NULL,"NULL","","a,b","q\\"q","back\\\\slash"}': None},
    "jsonb[]": {'{"{\\"a\\": 1.10}",NULL}': None},
    "bool": {"true": None, "false": None},
    "bytea": {"\\x00ff10": None, "\\x": None},
    "interval": {"1 year 2 mons 3 days 04:05:06.789": "P1Y2M3DT4H5M6.789S"},
    "text": {"%s %% ' \" \\ ü 😀": None, "": None, "null": None},
    "money": {"$1,234.50": None},
    "int4range": {"[1,5)": None, "empty": None},
}  # fmt: skip


def _odd_column(number: int) -> str:
    """Names that SQL, drivers and subjects quote, each in their way."""
    return ("v{} %s", 'v{} "q"', "V{}", "v{} 'é.*>", "v{} %%")[number % 5].format(number)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


_ODD_NAMES = [_quoted(_odd_column(n)) for n in range(len(ODD))]
_ODD_VALUES = [
    f"(ARRAY[{', '.join(_literal(value) for value in [*values, 'NULL'])}])".replace(
        "'NULL'", "NULL"
    )
    + f"[1 + (n + {number}) % {len(values) + 1}]::{type_}"
    for number, (type_, values) in enumerate(ODD.items())
]
_ODD_TABLE = '"odd % 1"'
_ODD = Kind(
    create=f"""
    CREATE TABLE {_ODD_TABLE} (id int8 PRIMARY KEY,
        {", ".join(f"{name} {type_}" for name, type_ in zip(_ODD_NAMES, ODD, strict=True))});
    CREATE TABLE big (id int8 PRIMARY KEY, n numeric(30,4)[]);
    CREATE TABLE rowids (rowid int, a text); ALTER TABLE rowids REPLICA IDENTITY FULL;
    INSERT INTO {_ODD_TABLE} SELECT n, {", ".join(_ODD_VALUES)} FROM generate_series(1, 20) n;
    INSERT INTO big SELECT 9007199254740992 + n FROM generate_series(1, 30) n;
    INSERT INTO rowids SELECT n % 5, 'a' FROM generate_series(1, 30) n;
    ALTER PUBLICATION p ADD TABLE {_ODD_TABLE}, big, rowids""",
    writes=(
        f"INSERT INTO {_ODD_TABLE} SELECT NEW, {', '.join(_ODD_VALUES)}"
        " FROM generate_series(K, K) n ON CONFLICT DO NOTHING",
        f"UPDATE {_ODD_TABLE} SET ({', '.join(_ODD_NAMES)}) = ROW({', '.join(_ODD_VALUES)})"
        " FROM generate_series(K, K) n WHERE id % 3 = K % 3",
        f"DELETE FROM {_ODD_TABLE} WHERE id % 11 = K % 11",
        "INSERT INTO big VALUES (9007199254740992 + NEW) ON CONFLICT DO NOTHING",
        "DELETE FROM big WHERE id % 7 = K % 7",
        "INSERT INTO rowids VALUES (K % 5, 'b')",
        "DELETE FROM rowids WHERE ctid = (SELECT max(ctid) FROM rowids)",
        "UPDATE rowids SET a = a || 'c' WHERE rowid = K % 5 AND length(a) < 9",
    ),
    recipes=(
        (f"ALTER TABLE {_ODD_TABLE} RENAME TO odd", f'ALTER TABLE odd RENAME TO {_ODD_TABLE}'),
        ('ALTER TABLE big ADD COLUMN "100%s ""K""" text', 'ALTER TABLE big DROP "100%s ""K"""'),
    ),
)  # fmt: skip

_CITEXT = Kind(  # an order that only the type's own operators have
    create="""
    CREATE SCHEMA extensions; CREATE EXTENSION citext SCHEMA extensions;
    CREATE TABLE mails (email extensions.citext PRIMARY KEY, n int);
    INSERT INTO mails SELECT CASE n % 2 WHEN 0 THEN 'user' ELSE 'USER' END || n, n
    FROM generate_series(1, 400) n;
    ALTER PUBLICATION p ADD TABLE mails""",
    writes=(
        "INSERT INTO mails VALUES ('NewK', K) ON CONFLICT DO NOTHING",
        "UPDATE mails SET n = n + 1 WHERE n % 7 = K % 7",
        "DELETE FROM mails WHERE n % 23 = K % 23",
    ),
    recipes=(("ALTER TABLE mails ADD COLUMN cK int", "ALTER TABLE mails DROP COLUMN cK"),),
    extension="citext",
)

KINDS = {
    "rows": _ROWS, "publication": _PUBLICATION, "keys": _KEYS, "swaps": _SWAPS,
    "partitions": _PARTITIONS, "names": _NAMES, "columns": _COLUMNS, "domains": _DOMAINS,
    "enums": _ENUMS, "calculated": _CALCULATED, "generated": _GENERATED, "silent": _SILENT,
    "odd": _ODD, "citext": _CITEXT,
}  # fmt: skip
