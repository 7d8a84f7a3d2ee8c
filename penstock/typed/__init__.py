"""Rows with a table's own columns, as Arrow: from lines of COPY. Pure: no I/O, no pyspark."""
