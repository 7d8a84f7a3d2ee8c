"""What crosses between the service, the reader process and the tasks: options, tickets, splits and
the run folder. Plain values that pickle. No pyspark.
"""
