"""Finds documents by name: cases, frameworks, vendors, chips and suites, of the checkout and of plugins."""
