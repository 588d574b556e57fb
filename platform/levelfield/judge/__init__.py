"""Computes a Result from a run directory: validity, figures by `measure/`, and the verdict on the training."""
