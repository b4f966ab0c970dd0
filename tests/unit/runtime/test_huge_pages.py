"""The zygote's memory moves to huge pages, and stays what it is."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from minicluster.runtime.rank import huge_pages

MOVED = """
import hashlib, mmap
from minicluster.runtime.rank import huge_pages
memory = mmap.mmap(-1, 16 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
memory.write(bytes(range(256)) * (len(memory) // 256))
before = hashlib.sha256(memory).hexdigest()
steps = sum(1 for _ in huge_pages.collapse())
assert hashlib.sha256(memory).hexdigest() == before
huge_kb = sum(
    int(line.split()[1]) for line in open("/proc/self/smaps") if line.startswith("AnonHugePages:")
)
print(steps, huge_kb)
"""


def test_memory_moves_and_keeps_its_contents() -> None:
    if not Path("/sys/kernel/mm/transparent_hugepage").is_dir():
        pytest.skip("this kernel has no huge pages")
    printed = subprocess.run(
        [sys.executable, "-c", MOVED], capture_output=True, text=True, check=True
    ).stdout.split()
    steps, huge_kb = map(int, printed)
    if not steps:
        pytest.skip("this kernel cannot move memory to huge pages (Linux 6.1 can)")
    assert steps >= 7 and huge_kb >= 7 * huge_pages.PAGE_BYTES // 1024


def test_only_whole_huge_pages_of_memory_without_a_file_are_moved() -> None:
    mapped = Path("/proc/self/maps").read_text().splitlines()
    files = [
        range(*(int(one, 16) for one in line.split()[0].split("-")))
        for line in mapped
        if line.split()[4] != "0"
    ]
    pages = [page for found in huge_pages.private_memory() for page in found]
    assert pages and not [page for page in pages if page % huge_pages.PAGE_BYTES]
    assert not [page for page in pages if any(page in file for file in files)]
