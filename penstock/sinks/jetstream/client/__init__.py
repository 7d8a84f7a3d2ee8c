"""The NATS client: a connection, the protocol in bytes, and JetStream's API."""
