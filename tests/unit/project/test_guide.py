"""The guide has each option and command. The site's build checks the links."""

from __future__ import annotations

from pathlib import Path

import pytest

import minicluster

from ...documents import blocks, with_reference

TREE = Path(__file__).resolve().parents[3]
DOCUMENTS = [TREE / "README.md", *sorted((TREE / "docs").glob("*.md"))]


def tables() -> str:
    """The guide's section with all options."""
    sections = (TREE / "docs" / "guide.md").read_text().split("\n## ")
    return next(section for section in sections if "All options" in section.partition("\n")[0])


def test_the_guide_has_each_option_and_command_as_declared() -> None:
    guide = (TREE / "docs" / "guide.md").read_text()
    assert with_reference(guide) == guide, "run: python -m tests.documents"


@pytest.mark.parametrize("helper", sorted({*minicluster.__all__} - {"local_rank"}))
def test_the_guide_has_each_helper(helper: str) -> None:
    assert f"`mc.{helper}(" in tables()


def test_what_is_not_run_by_a_test_says_why() -> None:
    left_out = [block for block in blocks((TREE / "docs" / "guide.md").read_text()) if block.reason]
    assert {block.source.split()[0] for block in left_out} == {"curl", "%distribute", "%pip", "%load_ext"}
    assert all(len(block.reason.split()) > 3 for block in left_out)


def test_each_picture_is_shown() -> None:
    texts = "".join(document.read_text() for document in DOCUMENTS)
    pictures = {path.name for path in (TREE / "docs" / "images").iterdir()}
    assert {name for name in pictures if f"images/{name})" not in texts} == set()
