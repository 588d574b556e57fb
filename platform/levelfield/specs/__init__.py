"""Frozen documents: the files of configs/, vendors/ and models/, and the documents of a run."""
