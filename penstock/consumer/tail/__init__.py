"""Reading a stream of changes back: what `penstock tail` and the demo's consumer are made of.

This is the consumer's side. It uses only what every consumer has: the documented messages and plain
JetStream. It imports nothing of the sink.
"""

__all__: list[str] = []
