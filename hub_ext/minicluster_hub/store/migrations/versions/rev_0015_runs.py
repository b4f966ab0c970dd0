"""Runs: what is remembered of each job, its tags, and the newest value of each metric."""

from __future__ import annotations

import json

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "runs",
        sa.Column("job_id", sa.Integer(), sa.ForeignKey("jobs.id", name="fk_runs_job_id"), nullable=False),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("note", sa.Text(), nullable=False),
        sa.Column("favourite", sa.Boolean(), nullable=False),
        sa.Column("origin", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("job_id", name="pk_runs"),
    )
    op.create_index("ix_runs_owner_name", "runs", ["owner", "name"])
    op.create_table(
        "run_tags",
        sa.Column(
            "job_id", sa.Integer(), sa.ForeignKey("jobs.id", name="fk_run_tags_job_id"), nullable=False
        ),
        sa.Column("tag", sa.String(64), nullable=False),
        sa.Column("place", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("job_id", "tag", name="pk_run_tags"),
    )
    op.create_index("ix_run_tags_tag", "run_tags", ["tag"])
    op.create_table(
        "run_metrics",
        sa.Column(
            "job_id", sa.Integer(), sa.ForeignKey("jobs.id", name="fk_run_metrics_job_id"), nullable=False
        ),
        sa.Column("name", sa.Text(), nullable=False),
        *(sa.Column(name, sa.Float()) for name in ("value", "step", "low", "high")),
        sa.PrimaryKeyConstraint("job_id", "name", name="pk_run_metrics"),
    )
    op.create_index("ix_run_metrics_name", "run_metrics", ["name"])
    # The list of runs shows how many GPUs each had.
    op.create_index("ix_usage_job_id", "usage", ["job_id"])
    _add_rows()


def _add_rows() -> None:
    """Give each job of an earlier release its row."""
    connection = op.get_bind()
    jobs = sa.table("jobs", *map(sa.column, ("id", "owner", "spec")))
    runs = sa.table("runs", *map(sa.column, ("job_id", "owner", "name", "note", "favourite", "origin")))
    for job_id, owner, spec in connection.execute(sa.select(jobs.c.id, jobs.c.owner, jobs.c.spec)).all():
        row = {"job_id": job_id, "owner": owner, "name": _name(spec)}
        connection.execute(sa.insert(runs).values(**row, note="", favourite=False, origin="{}"))


def _name(spec: str) -> str:
    try:
        return str(json.loads(spec)["name"])
    except (ValueError, KeyError, TypeError):
        return "cell"


def downgrade() -> None:
    op.drop_index("ix_usage_job_id", "usage")
    for table in ("run_metrics", "run_tags", "runs"):
        op.drop_table(table)
