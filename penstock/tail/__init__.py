"""Reading a stream of changes back: what `penstock tail` and the demo's consumer are made of.

This is the consumer's side, and knows only what every consumer may know: the messages' own
format and plain JetStream. It imports nothing of the sink that wrote them.
"""

__all__: list[str] = []
