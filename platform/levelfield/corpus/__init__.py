"""Corpora on the host: checked whole once (integrity), and prepared from text (preparation)."""
