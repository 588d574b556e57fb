"""A case, a layout and a chip into bytes of memory and seconds per step. Pure functions and their constants."""
