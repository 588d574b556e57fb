"""The files of a run directory: made, written, read back and followed."""
