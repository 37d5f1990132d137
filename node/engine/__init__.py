"""Engines and the worker process around them. Torch lives here and nowhere else."""
