"""Figures from raw facts. All functions are pure: equal facts always give equal figures."""
