"""The rows of all jobs count to their owners, also those that came before they were counted.

The indexes are for the rows of jobs that were removed: for finding them, and for the references to them.
"""

from __future__ import annotations

from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None

_INDEXES = (("jobs", "owner", "removed_at"), ("ranks", "task_id"), ("snapshots", "attempt_id"))
_COUNTED = """
    INSERT INTO job_files (job_id, kind, sha256, owner, size_bytes)
    SELECT jobs.id, 'cells', '', jobs.owner, {spec} + COALESCE({error}, 0)
        + (SELECT COALESCE(SUM({story}), 0) FROM events WHERE events.job_id = jobs.id)
        + (SELECT COALESCE(SUM({of_rank}), 0) FROM ranks
           JOIN attempts ON attempts.id = ranks.attempt_id WHERE attempts.job_id = jobs.id)
    FROM jobs WHERE jobs.removed_at IS NULL
"""
_TEXTS = {"spec": "jobs.spec", "error": "jobs.error", "story": "events.text", "of_rank": "ranks.error"}


def upgrade() -> None:
    for table, *columns in _INDEXES:
        op.create_index(_name(table, columns), table, columns)
    op.execute("DELETE FROM job_files WHERE kind = 'cells' AND sha256 = ''")
    on_sqlite = op.get_bind().dialect.name == "sqlite"
    octets = "LENGTH(CAST({} AS BLOB))" if on_sqlite else "OCTET_LENGTH({})"
    op.execute(_COUNTED.format(**{name: octets.format(text) for name, text in _TEXTS.items()}))


def downgrade() -> None:
    for table, *columns in _INDEXES:
        op.drop_index(_name(table, columns), table)


def _name(table: str, columns: list[str]) -> str:
    return "_".join(("ix", table, *columns))
