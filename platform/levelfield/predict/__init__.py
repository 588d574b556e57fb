"""Predicts bytes of memory and seconds per step from a case, a layout and a chip. Pure functions only."""
