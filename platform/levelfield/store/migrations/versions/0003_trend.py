"""The view v_series counts the runs of the trend alone: half of the runs of pairs are of an older build."""

from __future__ import annotations

from alembic import op

revision = "0003"
down_revision = "0002"

_FIELDS = """series.label, series.case_name, series.scale, series.framework, series.vendor, series.chip, series.nodes,
       series.devices, series.precision, series.layout, series.runtime"""
_SERIES = f"""
VIEW v_series AS
SELECT series.digest AS series, {_FIELDS},
       COUNT(*) AS runs, SUM(CASE WHEN run.word = 'valid' THEN 1 ELSE 0 END) AS valid_runs,
       MIN(run.began) AS first_began, MAX(run.began) AS last_began,
       AVG(run.tokens_per_second_per_device) AS mean_tokens_per_second_per_device,
       MAX(run.tokens_per_second_per_device) AS best_tokens_per_second_per_device,
       MAX(run.memory_bytes) AS most_memory_bytes
FROM run
JOIN series ON series.id = run.series_id
WHERE run.is_aside = 0 AND run.purpose IN ('manual', 'nightly')
GROUP BY series.digest, {_FIELDS}
"""


def upgrade() -> None:
    """Replace the view. Its columns stay, and on PostgreSQL the rights that somebody gave to it."""
    if op.get_bind().dialect.name == "postgresql":
        op.execute(f"CREATE OR REPLACE {_SERIES}")
    else:
        op.execute("DROP VIEW v_series")
        op.execute(f"CREATE {_SERIES}")
