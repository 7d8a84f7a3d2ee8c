"""Snapshots: the rows of a table at one point of its log, read into a store.

The feed says what a table's ranges are and reads them. `reading` brings them into chunks of a
stream (`store`), for requests, or into a table of the sink (`loading`). Nothing here knows SQL or
Spark.
"""
