"""Reading a stream of changes back: what `penstock tail` and the demo's consumer are made of."""
