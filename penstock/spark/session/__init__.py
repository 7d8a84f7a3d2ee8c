"""The Spark session of `penstock run`, and how it starts fast: what it is started with (`plan`),
its JVM, which boots before PySpark is imported (`jvm`, `launch`), with an archive of classes
(`archive`), and its Python workers (`forks`). All but the plan are optional.
"""
