"""A file of either kind, for commands that look at what is stored."""

from pathlib import Path

from penstock.config import Deployment, Pipeline, keys_of, load_file
from penstock.processor.settings import ProcessorFile


def load_deployment(file: Path, state: Path | None) -> Deployment:
    """The pipeline in FILE, or the processor where it has neither a sink nor Spark. `state`
    replaces the file's. Raises SettingsError."""
    keys = keys_of(file)
    is_processor = "processor" in keys or ("backends" in keys and not keys & {"sink", "spark"})
    model: type[Deployment] = ProcessorFile if is_processor else Pipeline
    return load_file(file, model, overrides={"state": str(state)} if state else {})
