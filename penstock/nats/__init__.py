"""A synchronous NATS client: connection, protocol, authentication, JetStream's API. It knows no
sink.
"""
