"""Bounded buffers of pages, filled by a few threads that follow any number of partitions. Runs in
the reader process, and in the tasks of a feed that tasks may read by themselves.
"""
