"""Python workers as forks of one process that has imported what they need: the fork server.

Spark starts some seven Python processes for a query, and each imports PySpark, Arrow and penstock:
half a second of CPU or more. With `spark.fork_server` (the default, on one machine) the program
that Spark takes for Python is `launcher`, which has the `server` fork a `worker`; `start` is all
that a session uses. PySpark's own hook, `spark.python.daemon.module`, holds for the workers of
tasks only: the reader process and the five kinds of worker that plan a query ignore it (a test
shows it).
"""
