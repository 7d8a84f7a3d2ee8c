"""A synchronous NATS client: connection, protocol, authentication, JetStream's API, pull consumers,
key-value buckets and services. It imports no sink.
"""
