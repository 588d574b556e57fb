"""Figures from raw facts. Pure functions without input or output: equal facts give equal figures, today or later."""
