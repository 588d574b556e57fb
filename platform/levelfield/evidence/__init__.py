"""Runs that others can check: bundles of raw files, made, signed, read and verified."""
