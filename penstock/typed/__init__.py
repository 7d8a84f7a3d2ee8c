"""Rows with a table's own columns, or those of a user's schema, as Arrow: from lines of COPY
(`lines`) and from documents (`documents`, `changes`). Pure: no I/O, no pyspark."""
