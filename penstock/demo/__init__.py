"""The demo: a shop on an embedded database, the pipeline, a consumer, and a verdict."""
