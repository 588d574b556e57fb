"""Levelfield: the same pretraining case on every accelerator, judged by one set of rules.

Nothing is imported here: the training process imports `levelfield.worker` under old Pythons
that have none of the platform's dependencies.
"""

__version__ = "1.0.0"
