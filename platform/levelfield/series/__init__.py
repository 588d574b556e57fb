"""The nights of a series into levels, segments, eras and findings. Pure functions with their sources."""
