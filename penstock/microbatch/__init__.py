"""What runs for a Spark query, without pyspark: the reader process (one a backend, on the driver's
side) plans micro-batches and hands pages to tasks; the tasks (Python workers, on any host) decode
pages, write them to a sink and report what is stored. They exchange plain values that pickle.
"""
