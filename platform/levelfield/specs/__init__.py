"""Frozen documents: what is written in configs/, vendors/ and models/, and what a run leaves."""
