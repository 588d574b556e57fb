"""Stored runs into static pages, their data files, and a server that only reads."""
