"""One column per kind of value: its type, what is written in SQL, what a row image must hold.

`capture.py` makes the tables from this; `test_golden_values.py` compares with what servers sent.
"""

from dataclasses import dataclass
from typing import Any

SETUP = """
CREATE TYPE mood AS ENUM ('sad', 'it''s ok', 'happy, very');
CREATE DOMAIN positive AS integer CHECK (VALUE > 0);
CREATE DOMAIN moods AS mood[];
CREATE DOMAIN small AS positive;
CREATE TYPE pair AS (x integer, y text);
CREATE TYPE heights AS RANGE (subtype = float8);
"""


@dataclass(frozen=True, slots=True)
class Kind:
    """`msgpack` where it differs from JSON (which ... leaves to a test of its own); `since` the
    first server version that has it."""

    name: str
    type: str
    sql: str
    json: Any
    msgpack: Any = ...
    since: int = 13

    def known_to(self, version: int) -> bool:
        # The servers from PyPI are built without libxml.
        return self.since <= version and (self.type != "xml" or version == 15)

    @property
    def as_msgpack(self) -> Any:
        return self.json if self.msgpack is ... else self.msgpack


_DEEP = 300
_LONG_NUMBER = "123456789012345678901234567890.123456789"

KINDS = (
    Kind("bool_true", "boolean", "true", True),
    Kind("bool_false", "boolean", "false", False),
    Kind("int2", "smallint", "-32768", -32768),
    Kind("int4", "integer", "2147483647", 2147483647),
    Kind("int8", "bigint", "9223372036854775807", 9223372036854775807),
    Kind("int8_min", "bigint", "-9223372036854775808", -9223372036854775808),
    Kind("oid", "oid", "4294967295", 4294967295),
    Kind("float4", "real", "0.1", 0.1),
    Kind("float8", "double precision", "0.1::float8 + 0.2", 0.30000000000000004),
    Kind("float8_max", "double precision", "1.7976931348623157e308", 1.7976931348623157e308),
    Kind("float8_tiny", "double precision", "5e-324", 5e-324),
    Kind("float8_nan", "double precision", "'NaN'", "NaN"),
    Kind("float8_inf", "double precision", "'Infinity'", "Infinity"),
    Kind("float4_minus_inf", "real", "'-Infinity'", "-Infinity"),
    Kind("numeric_scale", "numeric(12,4)", "12.5", "12.5000"),
    Kind("numeric_long", "numeric", _LONG_NUMBER, _LONG_NUMBER),
    Kind("numeric_nan", "numeric", "'NaN'", "NaN"),
    Kind("numeric_inf", "numeric", "'-Infinity'", "-Infinity", since=14),
    Kind("money", "money", "1234.5", "$1,234.50"),
    Kind("text", "text", r"E'tab\t \"quoted\" \\ ü € 😀'", 'tab\t "quoted" \\ ü € 😀'),
    Kind("text_empty", "text", "''", ""),
    Kind("char3", "char(3)", "'a'", "a  "),
    Kind("varchar", "varchar(9)", "'nine'", "nine"),
    Kind("name", "name", "'who'", "who"),
    Kind("uuid", "uuid", "'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11'",
         "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"),
    Kind("bytea", "bytea", r"'\x00ff10'", "AP8Q", b"\x00\xff\x10"),
    Kind("bytea_empty", "bytea", "''", "", b""),
    Kind("json", "json", """'{"b": [1, null], "a": 1.50}'""", {"b": [1, None], "a": 1.5},
         '{"b": [1, null], "a": 1.50}'),
    Kind("json_huge", "json", "'[1e400, 18446744073709551616, 1e-400]'",
         "[1e400, 18446744073709551616, 1e-400]"),
    Kind("json_surrogate", "json", r"""'"\ud800"'""", r'"\ud800"'),
    Kind("jsonb", "jsonb", """'{"n": 12345678901234567890.5, "i": 9007199254740993}'""",
         ..., '{"i": 9007199254740993, "n": 12345678901234567890.5}'),
    Kind("jsonb_null", "jsonb", "'null'", "null"),
    Kind("jsonb_deep", "jsonb", f"(repeat('[', {_DEEP}) || repeat(']', {_DEEP}))::jsonb",
         "[" * _DEEP + "]" * _DEEP),
    Kind("date", "date", "'2026-02-28'", "2026-02-28"),
    Kind("date_bc", "date", "'0044-03-15 BC'", "-000043-03-15"),
    Kind("date_1bc", "date", "'0001-01-01 BC'", "0000-01-01"),
    Kind("date_far", "date", "'5874897-12-31'", "+5874897-12-31"),
    Kind("date_inf", "date", "'infinity'", "infinity"),
    Kind("time", "time", "'23:59:59.999999'", "23:59:59.999999"),
    Kind("time_24", "time", "'24:00'", "24:00:00"),
    Kind("timetz", "timetz", "'12:00:00+05:30'", "12:00:00+05:30"),
    Kind("timestamp", "timestamp", "'2026-01-02 03:04:05.6'", "2026-01-02T03:04:05.6"),
    Kind("timestamp_bc", "timestamp", "'4713-01-01 00:00:00 BC'", "-004712-01-01T00:00:00"),
    Kind("timestamp_inf", "timestamp", "'-infinity'", "-infinity"),
    Kind("timestamptz", "timestamptz", "'2026-01-02 03:04:05.678901+02'",
         "2026-01-02T01:04:05.678901Z"),
    Kind("timestamptz_whole", "timestamptz", "'2026-01-02 03:04:05+00'", "2026-01-02T03:04:05Z"),
    Kind("timestamptz_bc", "timestamptz", "'0044-03-15 12:00:00+00 BC'",
         "-000043-03-15T12:00:00Z"),
    Kind("timestamptz_far", "timestamptz", "'12000-01-01 00:00:00+00'",
         "+012000-01-01T00:00:00Z"),
    Kind("timestamptz_inf", "timestamptz", "'infinity'", "infinity"),
    Kind("interval", "interval", "'1 year 2 months 3 days 04:05:06.789'",
         "P1Y2M3DT4H5M6.789S"),
    Kind("interval_minus", "interval", "'-1 day +02:00'", "P-1DT2H"),
    Kind("interval_inf", "interval", "'infinity'", "infinity", since=17),
    Kind("bit", "bit(3)", "B'101'", "101"),
    Kind("varbit", "bit varying(9)", "B'1'", "1"),
    Kind("inet", "inet", "'10.0.0.1/8'", "10.0.0.1/8"),
    Kind("cidr", "cidr", "'10.0.0.0/8'", "10.0.0.0/8"),
    Kind("macaddr", "macaddr", "'08:00:2b:01:02:03'", "08:00:2b:01:02:03"),
    Kind("xml", "xml", "'<a>1</a>'::text::xml", "<a>1</a>"),
    Kind("tsvector", "tsvector", "'fat:1 cat:2'", "'cat':2 'fat':1"),
    Kind("point", "point", "'(1,2)'", "(1,2)"),
    Kind("box", "box", "'(3,4),(1,2)'", "(3,4),(1,2)"),
    Kind("boxes", "box[]", "ARRAY['(3,4),(1,2)', NULL, '(1,1),(0,0)']::box[]",
         ["(3,4),(1,2)", None, "(1,1),(0,0)"]),
    Kind("int4range", "int4range", "'[1,5)'", "[1,5)"),
    Kind("tstzrange", "tstzrange", "'[2026-01-01 00:00+00,)'", '["2026-01-01 00:00:00+00",)'),
    Kind("int4multirange", "int4multirange", "'{[1,3),[5,9)}'", "{[1,3),[5,9)}", since=14),
    Kind("own_range", "heights", "'[0.5,1.5]'", "[0.5,1.5]"),
    Kind("enum", "mood", "'it''s ok'", "it's ok"),
    Kind("enums", "mood[]", "ARRAY['sad', NULL, 'happy, very']::mood[]",
         ["sad", None, "happy, very"]),
    Kind("domain", "positive", "7", 7),
    Kind("domain_of_domain", "small", "8", 8),
    Kind("domains", "positive[]", "ARRAY[1, 2]::positive[]", [1, 2]),
    Kind("domain_of_array", "moods", "'{sad}'", ["sad"]),
    Kind("composite", "pair", "ROW(1, 'a b')", '(1,"a b")'),
    Kind("composites", "pair[]", "ARRAY[ROW(1, 'a'), NULL]::pair[]", ["(1,a)", None]),
    Kind("ints", "integer[]", "'{1,NULL,-3}'", [1, None, -3]),
    Kind("ints_empty", "integer[]", "'{}'", []),
    Kind("ints_2d", "integer[]", "'{{1,2},{NULL,4}}'", [[1, 2], [None, 4]]),
    Kind("ints_3d", "integer[]", "'{{{1},{2}},{{3},{4}}}'", [[[1], [2]], [[3], [4]]]),
    Kind("ints_bounds", "integer[]", "'[0:1]={7,8}'", "[0:1]={7,8}"),
    Kind("ints_bounds_2d", "integer[]", "'[0:0][-1:1]={{1,2,3}}'",
         "[0:0][-1:1]={{1,2,3}}"),
    Kind("texts", "text[]",
         r"""ARRAY['a', NULL, 'NULL', 'null', '', 'b c', 'd,e', '{f}', 'g"h', 'i\j', E'k\nl']""",
         ["a", None, "NULL", "null", "", "b c", "d,e", "{f}", 'g"h', "i\\j", "k\nl"]),
    Kind("texts_2d", "text[]", """'{{a,"b}"},{NULL,"NULL"}}'""", [["a", "b}"], [None, "NULL"]]),
    Kind("floats", "float8[]", "'{1.5,NaN,Infinity,NULL}'", [1.5, "NaN", "Infinity", None]),
    Kind("numerics", "numeric(5,2)[]", "'{1,NaN}'", ["1.00", "NaN"]),
    Kind("bools", "boolean[]", "'{t,f,NULL}'", [True, False, None]),
    Kind("byteas", "bytea[]", r"""ARRAY['\x00ff', NULL]::bytea[]""", ["AP8=", None],
         [b"\x00\xff", None]),
    Kind("jsonbs", "jsonb[]", """ARRAY['{"a": [1]}', 'null', NULL]::jsonb[]""",
         [{"a": [1]}, "null", None], ['{"a": [1]}', "null", None]),
    Kind("timestamps", "timestamptz[]", """'{"2026-01-02 03:04:05+00",infinity}'""",
         ["2026-01-02T03:04:05Z", "infinity"]),
    Kind("uuids", "uuid[]", "'{a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11}'",
         ["a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"]),
)  # fmt: skip

# What the golden pages do not have: types and values that only a live test sends.
LIVE_SETUP = (
    SETUP
    + """
CREATE DOMAIN dbytes AS bytea;
CREATE DOMAIN dtime AS timestamptz(3);
CREATE DOMAIN dfloat AS float8;
CREATE DOMAIN ddoc AS jsonb;
CREATE DOMAIN dbool AS boolean;
CREATE DOMAIN dnum AS numeric(8,2);
CREATE DOMAIN dbox AS box;
CREATE DOMAIN ints AS integer[];
CREATE TABLE "Users" (id integer);
"""
)
_DEEPER = 1000

LIVE = (
    Kind("int8_large", "bigint", "9007199254740993", 9007199254740993),
    Kind("float8_zero", "float8", "'-0'", -0.0),
    Kind("money_minus", "money", "'-1234567.89'", "-$1,234,567.89"),
    Kind("moneys", "money[]", "ARRAY[1.5, NULL]::numeric[]::money[]", ["$1.50", None]),
    Kind("char1", '"char"', "'x'", "x"),
    Kind("chars", "char(3)[]", "'{a,\" b\"}'", ["a  ", " b "]),
    Kind("date_1_bc", "date", "'0001-12-31 BC'", "0000-12-31"),
    Kind("date_10000", "date", "'10000-01-01'", "+010000-01-01"),
    Kind("date_minus_inf", "date", "'-infinity'", "-infinity"),
    Kind("timestamp_1_bc", "timestamp", "'0001-12-31 12:00:00.5 BC'", "0000-12-31T12:00:00.5"),
    Kind("timestamp_far", "timestamp", "'294276-12-31 23:59:59.999999'",
         "+294276-12-31T23:59:59.999999"),
    Kind("dates", "date[]", "'{0044-03-15 BC,12000-01-01,-infinity,2026-01-02}'",
         ["-000043-03-15", "+012000-01-01", "-infinity", "2026-01-02"]),
    Kind("timestamptzs", "timestamptz(3)[]",
         "'{\"0044-03-15 12:00:00+00 BC\",\"12000-01-01 00:00:00.25+00\"}'",
         ["-000043-03-15T12:00:00Z", "+012000-01-01T00:00:00.25Z"]),
    Kind("daterange", "daterange", "'[0044-03-15 BC,12000-01-01)'",
         '["0044-03-15 BC",12000-01-01)'),
    Kind("tsrange", "tsrange", "'[\"0044-03-15 12:00:00 BC\",\"12000-01-01 00:00:00\")'",
         '["0044-03-15 12:00:00 BC","12000-01-01 00:00:00")'),
    Kind("tstzranges", "tstzrange[]", "ARRAY['[2026-01-01 00:00+00,)', NULL]::tstzrange[]",
         ['["2026-01-01 00:00:00+00",)', None]),
    Kind("intervals", "interval[]", "'{1 day,-1 mon 3 days}'", ["P1D", "P-1M3D"]),
    Kind("boxes_bounds", "box[]", "'[0:1]={(1,1),(0,0);(2,2),(1,1)}'",
         "[0:1]={(1,1),(0,0);(2,2),(1,1)}"),
    Kind("texts_bounds", "text[]", """'[2:3]={"a b",NULL}'""", '[2:3]={"a b",NULL}'),
    Kind("enums_bounds", "mood[]", """'[0:0]={"happy, very"}'""", '[0:0]={"happy, very"}'),
    Kind("byteas_bounds", "bytea[]", r"""'[0:0]={"\\x00ff"}'""", r'[0:0]={"\\x00ff"}'),
    Kind("json_compact", "json", """'{"a":1,"a":2 ,"n":[1.10,{}],"s":"\\u00e9/\\/"}'""", ...),
    Kind("json_array", "json", "'[ 1.50,2]'", ...),
    Kind("json_spaced", "json", """E'\\n {"a": 1}\\n'""", ...),
    Kind("json_number", "json", "'1.10'", ...),
    Kind("json_zero", "json", "'-0'", ...),
    Kind("json_digits", "json", f"'-{'1' * 200}'", ...),
    Kind("json_string", "json", """'"x \\" y"'""", ...),
    Kind("json_null", "json", "' null'", " null", " null"),
    Kind("json_cut", "json", r"""'{"name":"cut \ud83d"}'""", ...),
    Kind("json_deep", "json", f"'{'[' * _DEEPER}{']' * _DEEPER}'", ...),
    Kind("jsonb_string", "jsonb", """'"null"'""", ...),
    Kind("jsonb_number", "jsonb", "'123456789012345678901234567890.10'", ...),
    Kind("jsonb_integer", "jsonb", "'123456789012345678901234567890'", ...),
    Kind("jsonb_huge", "jsonb", "'[1e400]'", ...),
    Kind("jsonb_true", "jsonb", "'true'", ...),
    Kind("jsonb_price", "jsonb", """'{"price": 1.50, "n": 0.12345678901234567890}'""", ...),
    Kind("jsonb_text", "jsonb", r"""'{"é\u0001\n": "\u00e9😀\\\"/"}'""", ...),
    Kind("jsonb_deeper", "jsonb", f"'{'[' * _DEEPER}{']' * _DEEPER}'", ...),
    Kind("jsonb_lists", "jsonb[]", """ARRAY['[1.50]', '"x"', '"null"', 'null', NULL, '{"a": 1.10}',
         '2', 'true']::jsonb[]""", ...,
         ["[1.50]", '"x"', '"null"', "null", None, '{"a": 1.10}', "2", "true"]),
    Kind("jsonbs_2d", "jsonb[]", "ARRAY[ARRAY['[1]', 'null'], ARRAY[NULL, '{}']]::jsonb[]", ...,
         [["[1]", "null"], [None, "{}"]]),
    Kind("jsons", "json[]", """ARRAY['{"a":1,"a":2}', ' 1.0']::json[]""", ...,
         ['{"a":1,"a":2}', " 1.0"]),
    Kind("domain_bytea", "dbytes", r"'\x00ff10'", "AP8Q", b"\x00\xff\x10"),
    Kind("domain_byteas", "dbytes[]", r"""ARRAY['\x00ff', NULL]::dbytes[]""", ["AP8=", None]),
    Kind("domain_time", "dtime", "'0044-03-15 12:00:00+00 BC'", "-000043-03-15T12:00:00Z"),
    Kind("domain_times", "dtime[]", "'{2026-01-02 03:04:05.25+00}'", ["2026-01-02T03:04:05.25Z"]),
    Kind("domain_float", "dfloat", "1e20", 1e20),
    Kind("domain_document", "ddoc", "'null'", ...),
    Kind("domain_documents", "ddoc[]", "ARRAY['null', NULL, '[1.0]']::ddoc[]", ...,
         ["null", None, "[1.0]"]),
    Kind("domain_bool", "dbool", "true", True),
    Kind("domain_numeric", "dnum", "1.5", "1.50"),
    Kind("domain_boxes", "dbox[]", "ARRAY['(3,4),(1,2)', '(1,1),(0,0)']::dbox[]",
         ["(3,4),(1,2)", "(1,1),(0,0)"]),
    Kind("domain_ints", "ints", "'{1,NULL}'", [1, None]),
    Kind("regclass", "regclass", """'"Users"'""", 'public."Users"'),
    Kind("regclasses", "regclass[]", """ARRAY['"Users"', 'pg_class']::regclass[]""",
         ['public."Users"', "pg_class"]),
    Kind("regtype", "regtype", "'timestamptz'", "timestamp with time zone"),
    Kind("regproc", "regproc", "'now'", "now"),
    Kind("oids", "oid[]", "'{4294967295}'", [4294967295]),
    Kind("int2vector", "int2vector", "'1 2 3'", "1 2 3"),
    Kind("xid8", "xid8", "'18446744073709551615'", "18446744073709551615"),
    Kind("tid", "tid", "'(1,2)'", "(1,2)"),
    Kind("pg_lsn", "pg_lsn", "'0/16B3748'", "0/16B3748"),
    Kind("jsonpath", "jsonpath", "'$.a[*]'", '$."a"[*]'),
    Kind("path", "path", "'[(1,2),(3,4)]'", "[(1,2),(3,4)]"),
    Kind("circle", "circle", "'<(1,2),3>'", "<(1,2),3>"),
    Kind("macaddr8", "macaddr8", "'08:00:2b:01:02:03:04:05'", "08:00:2b:01:02:03:04:05"),
    Kind("bits", "bit(3)[]", "'{101}'", ["101"]),
)  # fmt: skip
