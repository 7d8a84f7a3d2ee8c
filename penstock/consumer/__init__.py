"""Who reads a stream back, with what every consumer has: the documented messages and plain
JetStream. `tail` prints changes, `mirror` keeps copies of tables, `compare` holds a stream against
its source. Nothing of the sink is imported.
"""
