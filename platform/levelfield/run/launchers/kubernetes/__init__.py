"""Launcher `kubernetes`: a Job, JobSet or TrainJob, watched through the cluster's interface."""
