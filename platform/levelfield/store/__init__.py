"""Results over time, in a database: SQLite for one machine, PostgreSQL for a team. docs/store.md describes it."""
