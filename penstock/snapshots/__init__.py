"""Snapshots on demand: the rows of a table at one point of its log, as chunks in a stream.

The feed says what a table's ranges are and reads them; here they become chunks, and requests for
them are answered. Nothing here knows SQL or Spark.
"""
