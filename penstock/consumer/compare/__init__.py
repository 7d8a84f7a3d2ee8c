"""Compares a stream with the collection or table that it comes from, document by document.

The seam is `feeds.ReadsCollections`; `replica.fold` keeps the last state of each document as the
stream has it.
"""
