"""Print what some extras of pyproject.toml ask for, so that an image has its packages before our source."""

from __future__ import annotations

import argparse
import re
import sys
import tomllib
from pathlib import Path


def name_of(requirement: str) -> str:
    """Return the package that a requirement is about."""
    found = re.match(r"[A-Za-z0-9._-]+", requirement)
    return found.group().lower().replace("_", "-") if found else ""


def requirements(pyproject: Path, extras: list[str]) -> list[str]:
    """Return the requirements of the package itself and of these extras, each once."""
    project = tomllib.loads(pyproject.read_text())["project"]
    known = project["optional-dependencies"]
    unknown = [extra for extra in extras if extra not in known]
    if unknown:
        raise SystemExit(f"{pyproject} has no extra {', '.join(unknown)}; it has {', '.join(known)}")
    return sorted({*project["dependencies"], *(line for extra in extras for line in known[extra])})


def main() -> None:
    """Print one requirement per line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="where pyproject.toml lies")
    parser.add_argument("extras", nargs="*")
    parser.add_argument("--without", nargs="*", default=[], help="packages that are there already")
    asked = parser.parse_args()
    lines = requirements(asked.folder / "pyproject.toml", asked.extras)
    lines = [line for line in lines if name_of(line) not in asked.without]
    sys.stdout.writelines(f"{line}\n" for line in lines)


if __name__ == "__main__":
    main()
