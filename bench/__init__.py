"""Benchmarks of the whole pipeline on one machine: `python -m bench --help`."""
