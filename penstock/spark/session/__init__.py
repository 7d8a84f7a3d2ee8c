"""The Spark session of `penstock run`, and how it starts fast: its JVM (`launch`, an archive of
classes) and its Python workers (`forks`). All are optional.
"""
