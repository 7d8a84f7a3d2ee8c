"""`penstock run`, in the service process: who runs, standby, where to resume, supervision, what
operators see.
"""
