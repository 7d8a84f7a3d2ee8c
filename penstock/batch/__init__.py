"""A table's rows at one point, or a span of changes, for a batch query of Spark: without pyspark.

The planner's process ends with the planning, and what it had open with it. So a process of its own,
the holder, keeps the snapshot, and tasks read the ranges from the source under it.
"""
