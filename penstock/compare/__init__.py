"""Compares a stream with the collection or table that it comes from, document by document.

The seam is `feeds.ReadsCollections`; what a stream says is folded here to the last state of each
document.
"""
