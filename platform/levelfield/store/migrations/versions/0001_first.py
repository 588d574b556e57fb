"""The first schema: runs with their series, conditions, builds and nodes; events, expectations and findings."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

_SECONDS = {
    "sqlite": "CAST(strftime('%s', run.began) AS INTEGER)",
    "postgresql": "CAST(EXTRACT(EPOCH FROM CAST(run.began AS timestamptz)) AS bigint)",
}
_RESULT = """
CREATE VIEW v_result AS
SELECT run.run_id, run.began, {seconds} AS began_seconds, run.purpose, run.night, run.entry,
       series.label, series.case_name, series.scale, series.framework, series.vendor, series.chip, series.device_is,
       series.nodes, series.devices, series.precision, series.layout, series.micro_batch, series.recompute,
       series.runtime, subject.framework_version, subject.commit_hash, subject.platform_version,
       run.evidence, run.word, run.failure, run.reason, run.verdict,
       run.tokens_per_second_per_device, run.memory_bytes, run.joules_per_token, run.mfu, run.loss_tail,
       run.window_first, run.window_last,
       series.digest AS series, condition.digest AS conditions, subject.digest AS subject, node.digest AS node
FROM run
JOIN series ON series.id = run.series_id
JOIN condition ON condition.id = run.condition_id
JOIN subject ON subject.id = run.subject_id
JOIN node ON node.id = run.node_id
WHERE run.is_aside = 0
"""
_SERIES = """
CREATE VIEW v_series AS
SELECT series.digest AS series, series.label, series.case_name, series.scale, series.framework, series.vendor,
       series.chip, series.nodes, series.devices, series.precision, series.layout, series.runtime,
       COUNT(*) AS runs, SUM(CASE WHEN run.word = 'valid' THEN 1 ELSE 0 END) AS valid_runs,
       MIN(run.began) AS first_began, MAX(run.began) AS last_began,
       AVG(run.tokens_per_second_per_device) AS mean_tokens_per_second_per_device,
       MAX(run.tokens_per_second_per_device) AS best_tokens_per_second_per_device,
       MAX(run.memory_bytes) AS most_memory_bytes
FROM run
JOIN series ON series.id = run.series_id
WHERE run.is_aside = 0
GROUP BY series.digest, series.label, series.case_name, series.scale, series.framework, series.vendor,
         series.chip, series.nodes, series.devices, series.precision, series.layout, series.runtime
"""


def upgrade() -> None:
    _make_surroundings()
    _make_runs()
    _make_statements()
    op.execute(_RESULT.format(seconds=_SECONDS[op.get_bind().dialect.name]))
    op.execute(_SERIES)


def _make_surroundings() -> None:
    texts = ("label", "case_name", "work", "corpus", "scale", "framework", "vendor", "chip", "device_is", "precision")
    op.create_table(
        "series",
        _number(),
        _digest(),
        *(_text(name) for name in (*texts, "layout", "runtime")),
        *(sa.Column(name, sa.Integer, nullable=False) for name in ("nodes", "devices", "micro_batch", "accumulation")),
        _text("recompute"),
        _text("document"),
        sa.Column("sample", sa.LargeBinary, nullable=False),
    )
    op.create_table("condition", _number(), _digest(), _text("document"))
    known = (_text("framework_version"), _text("platform_version"), sa.Column("commit_hash", sa.Text))
    op.create_table("subject", _number(), _digest(), *known, _text("document"))
    op.create_table("node", _number(), _digest())


def _make_runs() -> None:
    figures = ("tokens_per_second_per_device", "memory_bytes", "joules_per_token", "mfu", "loss_tail")
    op.create_table(
        "run",
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("run_id", sa.Text, nullable=False, unique=True),
        _text("content"),
        sa.Column("row_digest", sa.LargeBinary, nullable=False),
        sa.Column("is_aside", sa.Integer, nullable=False),
        _text("began"),
        _text("purpose"),
        sa.Column("night", sa.Text),
        sa.Column("entry", sa.Text),
        _text("evidence"),
        sa.Column("evidence_reason", sa.Text),
        *(
            sa.Column(f"{table}_id", sa.Integer, sa.ForeignKey(f"{table}.id"), nullable=False)
            for table in ("series", "condition", "subject", "node")
        ),
        _text("word"),
        sa.Column("failure", sa.Text),
        sa.Column("reason", sa.Text),
        _text("verdict"),
        *(sa.Column(name, sa.Double) for name in figures),
        sa.Column("window_first", sa.Integer, nullable=False),
        sa.Column("window_last", sa.Integer, nullable=False),
    )
    op.create_index("run_of_series", "run", ["series_id", "is_aside", "began"])
    op.create_index("run_of_night", "run", ["night"])
    op.create_index("run_began", "run", ["began"])
    run = sa.ForeignKey("run.id", ondelete="CASCADE")
    op.create_table(
        "raw",
        sa.Column("run_id", sa.Integer, run, primary_key=True, autoincrement=False),
        *(sa.Column(name, sa.LargeBinary, nullable=False) for name in ("steps", "losses", "documents")),
    )
    content = sa.Column("document", sa.LargeBinary, nullable=False)
    op.create_table("aside", _number(), _text("run_id"), _text("content"), content)
    op.create_index("aside_once", "aside", ["run_id", "content"], unique=True)


def _make_statements() -> None:
    op.create_table(
        "event",
        sa.Column("id", sa.Text, primary_key=True),
        _text("kind"),
        sa.Column("series", sa.Text, index=True),
        sa.Column("node", sa.Text),
        *(_text(name) for name in ("at", "who", "why")),
        sa.Column("until", sa.Text),
        _text("document"),
    )
    op.create_table(
        "expectation",
        *(sa.Column(name, sa.Text, primary_key=True) for name in ("night", "suite", "entry")),
        sa.Column("series", sa.Text),
    )
    op.create_table("finding", _number(), sa.Column("night", sa.Text, nullable=False, index=True), _text("document"))


def _number() -> sa.Column[int]:
    return sa.Column("id", sa.Integer, primary_key=True)


def _digest() -> sa.Column[str]:
    return sa.Column("digest", sa.Text, nullable=False, unique=True)


def _text(name: str) -> sa.Column[str]:
    return sa.Column(name, sa.Text, nullable=False)
