"""Results as people and programs read them: terminal, Markdown, CSV and JSON."""
