"""How messages get into a stream, and when: `atomic` behind a fence, `individual` by their ids.

`pull`, `gather` and `order` bring changes together before they are messages; `flow` holds the
sender back, by `pressure` and `breaker`.
"""
