"""The files of a run directory: creating, writing, reading and following them."""
