"""Results over time, in SQLite or PostgreSQL: added once, exported, queried by series."""
