"""What runs in Spark's tasks (Python workers, on any host): fetch pages, decode them, write them to
a sink, report what is stored. No pyspark.
"""
