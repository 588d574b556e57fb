"""Whether the nodes of a run are fit: what a preflight measures, who differs from its peers, and what stops a run."""
