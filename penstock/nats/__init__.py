"""A synchronous NATS client: connection, protocol, authentication, JetStream's API, key-value
buckets and services. It imports no sink.
"""
