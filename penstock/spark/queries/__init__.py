"""The streaming queries of `penstock run`, in the service process: one for each backend."""
