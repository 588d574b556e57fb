"""Several stored runs into ratios, levels, segments and words. Pure functions with their sources."""
