"""The read side, in the reader process (one a backend, on the driver's side): partitions are
followed into bounded buffers, micro-batches are planned, bookmarks are saved and acknowledged, and
pages are handed to tasks. No pyspark.
"""
