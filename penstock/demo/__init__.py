"""The demo: a shop on an embedded database, the pipeline, a consumer, and a verdict."""

__all__ = ["SOURCES"]

# Each is a module with `DEMO`, a class, see `demo.sources`.
SOURCES = {
    "postgres": "penstock.demo.sources.postgres",
    "mongodb": "penstock.demo.sources.mongodb",
    "dynamodb": "penstock.demo.sources.dynamodb",
}
