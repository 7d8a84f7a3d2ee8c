"""What the operator wrote, read strictly: the pipeline file, and flat Spark options.

Every mistake is reported at once, with its place, and never with a secret's value. Feeds and sinks
bring their own settings models; they are found by `type` through `penstock.process.plugins`.
"""

from penstock.config.explain import explained
from penstock.config.load import build_pipeline, keys_of, load_file, load_pipeline, parse_pipeline
from penstock.config.options import options_from_settings, settings_from_options
from penstock.config.pipeline import (
    Backend,
    Checkpoint,
    Deployment,
    Ops,
    Pipeline,
    Sharing,
    SinkChoice,
    SnapshotSettings,
    Spark,
)
from penstock.config.secrets import secrets_of

__all__ = [
    "Backend",
    "Checkpoint",
    "Deployment",
    "Ops",
    "Pipeline",
    "Sharing",
    "SinkChoice",
    "SnapshotSettings",
    "Spark",
    "build_pipeline",
    "explained",
    "keys_of",
    "load_file",
    "load_pipeline",
    "options_from_settings",
    "parse_pipeline",
    "secrets_of",
    "settings_from_options",
]
