"""The Processor: any number of hosts follow one feed, and leases divide its partitions between
them. No Spark.

Processor (threads, signals) > Host (leases, turns) > OwnedPartition (reader, observer), downwards.
"""
