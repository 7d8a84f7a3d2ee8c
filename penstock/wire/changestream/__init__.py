"""MongoDB's change events: BSON bytes to changes. Pure: PyMongo's `bson` connects to nothing."""
