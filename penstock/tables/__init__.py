"""Rows of a database: changes folded by key, the steps to them, and PostgreSQL and SQLite targets.

For a mirror and for sinks that store tables; no NATS, no Spark.
"""
