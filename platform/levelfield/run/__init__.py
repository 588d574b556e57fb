"""Effects on machines: the queue of runs, one run, its processes or containers, locks, probes and telemetry."""
