"""`penstock run`: `service` runs the pipeline's queries on an `engine`, shows how they are, and
shares the pipeline with other instances (`standby`, `ownership`).
"""
