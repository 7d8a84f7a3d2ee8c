"""What the service, the reader process and the tasks exchange: options, tickets, splits, the run
folder. Plain values that pickle. No pyspark.
"""
