"""Several stored runs into comparable sides, ratios and tables. Pure functions with their sources."""
