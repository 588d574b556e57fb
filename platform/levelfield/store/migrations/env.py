"""What alembic runs for each upgrade: all steps in the transaction that store/schema.py has begun."""

from __future__ import annotations

from alembic import context

from levelfield.store.schema import METADATA

context.configure(connection=context.config.attributes["connection"], target_metadata=METADATA, transactional_ddl=False)
context.run_migrations()
