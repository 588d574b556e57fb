"""Launcher `slurm`: one batch job for all nodes of a run, watched through Slurm's own commands."""
