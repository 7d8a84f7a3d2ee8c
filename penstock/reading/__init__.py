"""How the partitions of a feed are read, whoever owns them: the Spark pipeline, the iterator, the
Processor. A reader for each partition, bounded buffers, the roster of partitions, leases on them,
and their positions, which are saved before they are acknowledged.
"""
