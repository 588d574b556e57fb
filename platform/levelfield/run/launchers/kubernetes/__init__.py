"""Launcher `kubernetes`: an Indexed Job, watched through the cluster's interface."""
