"""The steps from each released schema to the next, for alembic. A step that was released is never changed."""
