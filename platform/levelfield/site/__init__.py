"""Stored runs into a static site: pages, their data files, and a server that only reads."""
