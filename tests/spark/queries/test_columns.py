"""What Spark's analysis says of transforms: which columns they read."""

from pyspark.sql import SparkSession

from penstock.microbatch.late import CARRIER
from penstock.model.change import COLUMNS
from penstock.spark.queries.columns import no_changes, unread, with_unread

ALL = set(COLUMNS)


# Statements, and the columns that they read or make.
READ: list[tuple[list[str], set[str]]] = [
    ([], set()),
    (["SELECT * FROM changes"], set()),
    (["SELECT * FROM changes WHERE collection <> 'audit'"], {"collection"}),
    (["SELECT * FROM changes c WHERE c.Collection LIKE '%s' AND rand() < 2"], {"collection"}),
    (["SELECT *, upper(event_id) AS more FROM changes"], {"event_id"}),
    (["SELECT * EXCEPT (tenant), 'me' AS tenant FROM changes"], {"tenant"}),
    (["SELECT * EXCEPT (tenant), database AS tenant FROM changes"], {"tenant", "database"}),
    (
        ["SELECT * FROM changes WHERE get_json_object(after, '$.a') = 1"],
        {"after"},
    ),
    (
        ["SELECT * FROM changes WHERE array_contains(unchanged, 'note') OR ordinal > 3"],
        {"unchanged", "ordinal"},
    ),
    (
        [
            "SELECT *, upper(tenant) AS shout FROM changes",
            "SELECT * EXCEPT (shout) FROM changes WHERE shout = 'ME' AND captured_at > now()",
        ],
        {"tenant", "captured_at"},
    ),
    (["SELECT * FROM (SELECT * FROM changes WHERE database = 'a') WHERE 1 = 1"], {"database"}),
    # What does more is not looked into.
    (["SELECT * FROM changes WHERE operation IN (SELECT col1 FROM VALUES ('INSERT'))"], ALL),
    (["SELECT * FROM changes WHERE ordinal = (SELECT max(col1) FROM VALUES (1))"], ALL),
    (["SELECT * FROM changes UNION ALL SELECT * FROM changes"], ALL),
    (["SELECT a.* FROM changes a JOIN VALUES (1) AS t(n) ON a.ordinal = t.n"], ALL),
    (["SELECT * EXCEPT (tenant), explode(unchanged) AS tenant FROM changes"], ALL),
    (["SELECT DISTINCT * FROM changes"], ALL),
    (["SELECT * FROM changes LIMIT 3"], ALL),
    (["SELECT /*+ REPARTITION(4) */ * FROM changes"], ALL),
    (["SELECT * FROM changes DISTRIBUTE BY ordinal SORT BY ordinal"], ALL),
    # Two of a name, or one that is not there: the sink says so.
    (["SELECT *, 'me' AS tenant FROM changes"], {"tenant"}),
    (["SELECT * EXCEPT (tenant) FROM changes"], {"tenant"}),
    # Each of these is another's.
    (
        ["SELECT * EXCEPT (key, after), after AS key, key AS after FROM changes"],
        {"key", "after"},
    ),
]


def test_the_columns_that_transforms_read_or_make(spark: SparkSession) -> None:
    found = []
    for statements, _ in READ:
        made = source = no_changes(spark)
        for statement in statements:
            made.createOrReplaceTempView("changes")
            made = spark.sql(statement)
        found.append((statements, ALL - unread(source, made)))
    assert found == READ


def test_a_statement_may_name_what_it_does_not_read(spark: SparkSession) -> None:
    stubs = no_changes(spark).select("collection", CARRIER)
    whole = with_unread(stubs)
    assert whole.columns == [*COLUMNS, CARRIER]
    assert dict(whole.dtypes) == dict(no_changes(spark).dtypes)
