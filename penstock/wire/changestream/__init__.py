"""MongoDB's change events: BSON bytes to changes. Pure: `bson` of PyMongo decodes, and connects to
nothing.
"""
