"""The types that every PostgreSQL has, by OID: pg_type's rows below 10,000 that a column can have.

OIDs of built-in types never change. Types made by users and extensions have others, and come with
the page's context.
"""

from typing import Literal

Family = Literal[
    "boolean",
    "integer",
    "float",
    "text",
    "bytea",
    "json",
    "jsonb",
    "date",
    "timestamp",
    "timestamptz",
]

# family: (OID, OID of its array type; 0 = none)
_TYPES: dict[Family, tuple[tuple[int, int], ...]] = {
    "boolean": ((16, 1000),),
    # int8, int2, int4, oid
    "integer": ((20, 1016), (21, 1005), (23, 1007), (26, 1028)),
    "float": ((700, 1021), (701, 1022)),
    "bytea": ((17, 1001),),
    "json": ((114, 199),),
    "jsonb": ((3802, 3807),),
    "date": ((1082, 1182),),
    "timestamp": ((1114, 1115),),
    "timestamptz": ((1184, 1185),),
    "text": (
        # "char", name, text, bpchar, varchar, numeric, uuid, money, bit, varbit
        (18, 1002), (19, 1003), (25, 1009), (1042, 1014), (1043, 1015), (1700, 1231),
        (2950, 2951), (790, 791), (1560, 1561), (1562, 1563),
        # time, timetz, interval
        (1083, 1183), (1266, 1270), (1186, 1187),
        # inet, cidr, macaddr, macaddr8, xml, tsvector, tsquery, jsonpath
        (869, 1041), (650, 651), (829, 1040), (774, 775), (142, 143), (3614, 3643),
        (3615, 3645), (4072, 4073),
        # point, lseg, path, box, polygon, line, circle
        (600, 1017), (601, 1018), (602, 1019), (603, 1020), (604, 1027), (628, 629), (718, 719),
        # ranges: int4, num, ts, tstz, date, int8; then their multiranges
        (3904, 3905), (3906, 3907), (3908, 3909), (3910, 3911), (3912, 3913), (3926, 3927),
        (4451, 6150), (4532, 6151), (4533, 6152), (4534, 6153), (4535, 6155), (4536, 6157),
        # tid, xid, cid, xid8, pg_lsn, txid_snapshot, pg_snapshot, refcursor, int2vector, oidvector
        (27, 1010), (28, 1011), (29, 1012), (5069, 271), (3220, 3221), (2970, 2949), (5038, 5039),
        (1790, 2201), (22, 1006), (30, 1013),
        # regproc, regprocedure, regoper, regoperator, regclass, regtype, regconfig, regdictionary,
        # regnamespace, regrole, regcollation, aclitem
        (24, 1008), (2202, 2207), (2203, 2208), (2204, 2209), (2205, 2210), (2206, 2211),
        (3734, 3735), (3769, 3770), (4089, 4090), (4096, 4097), (4191, 4192), (1033, 1034),
    ),
}  # fmt: skip

BUILT_IN: dict[int, Family] = {oid: family for family, types in _TYPES.items() for oid, _ in types}

# array OID -> element OID
ARRAYS: dict[int, int] = {array: oid for types in _TYPES.values() for oid, array in types if array}
