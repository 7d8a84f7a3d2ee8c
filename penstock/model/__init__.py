"""What every part speaks of: changes, pages, positions, errors, findings, settings, schemas of
tables, and the one table of states. Plain values without I/O.
"""
