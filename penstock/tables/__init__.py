"""A database of tables, one class each for PostgreSQL and SQLite; changes folded by key, and the
steps to their rows.

For mirrors and for sinks of tables; no NATS, no Spark.
"""
