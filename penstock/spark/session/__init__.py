"""The Spark session of `penstock run`, and how it starts fast: its JVM (`launch`, `archive`) and
its Python workers (`forks`). Both are optional.
"""
