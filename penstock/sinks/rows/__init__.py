"""What comes before any sink, whatever it stores: batches are gathered, ordered and paced.

A `part` is what sinks take: changes in order, with their origins.
"""
