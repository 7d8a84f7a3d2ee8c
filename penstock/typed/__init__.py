"""Rows with the columns of a table or of a user's schema, as Arrow. Pure: no I/O, no pyspark.

`lines` reads lines of COPY, `documents` documents; `line_rows` and `changes` make batches of typed
rows of batches of changes with either; `columns` has what tells of a row.
"""
