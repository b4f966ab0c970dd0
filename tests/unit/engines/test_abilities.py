"""What each engine can: the documentation has the table that `doctor` and the pages show."""

from __future__ import annotations

from pathlib import Path

from minicluster.wire import Ability
from minicluster_hub.engines.abilities import abilities
from minicluster_hub.engines.entry_points import engine_class

from ...documents import engines, engines_table

PAGE = "docs/engines.md"


def test_the_documentation_has_the_table_of_the_engines(tree: Path) -> None:
    assert engines_table() in (tree / PAGE).read_text(), f"run python -m tests.documents for {PAGE}"


def test_the_engines_differ_where_their_slots_belong_to_others() -> None:
    of = {name: {one.name: one for one in abilities(engine)} for name, engine in engines()}
    policy = "the order of waiting jobs by a policy"
    assert of["local"][policy].can and of["swarm"][policy].can
    assert not of["slurm"][policy].can and "Slurm decides" in of["slurm"][policy].instead
    assert all(one.instead for columns in of.values() for one in columns.values() if not one.can)


def test_a_slurm_has_data_sets_in_a_folder_that_all_nodes_see(tmp_path: Path) -> None:
    def data_sets(**options: str) -> Ability:
        engine = engine_class("slurm")(data_dir=str(tmp_path), **options)
        return next(one for one in abilities(engine) if one.name == "data sets")

    assert "until an admin sets SlurmEngine.shared_dir" in data_sets().instead
    assert data_sets(shared_dir=str(tmp_path)).can
