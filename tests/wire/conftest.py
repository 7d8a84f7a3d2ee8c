"""Property tests here are slow only when the machine is: no deadline for a single example."""

from hypothesis import settings

settings.register_profile("patient", deadline=None)
settings.load_profile("patient")
