"""Results for people and programs: terminal, Markdown, CSV and JSON."""
