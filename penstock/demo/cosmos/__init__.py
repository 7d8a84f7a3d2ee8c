"""A server that speaks the part of Azure Cosmos DB's REST protocol that the change feed needs, to
the official SDK. A stand-in: it keeps everything in memory, and is not Cosmos DB.

What it cannot prove, because only the service knows: the form of etags, how LSNs are numbered after
a split or a merge, how long 410 lasts, request units, replicas that lag, failover, limits of a
page's bytes, and how an all-versions token that is too old is refused.
"""
