"""A task's cache of large parts of cells, for the owner's next cell on the same gang.

It is in the task's scratch folder, which belongs to one owner's gang and is removed with it. So no other
user's cell reads or writes it.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import weakref
from pathlib import Path

_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.mmap.restype = ctypes.c_void_p
_LIBC.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
_LIBC.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_FAILED = ctypes.c_void_p(-1).value


class PartStore:
    """A task's parts by their SHA-256; each is complete and its hash was checked.

    runtime/agent/part_downloads.py writes them.
    """

    def __init__(self, scratch: Path) -> None:
        self.folder = scratch / "parts"

    def path(self, sha256: str) -> Path:
        return self.folder / sha256

    def memory(self, sha256: str) -> memoryview:
        """Return a part without reading it yet. Writes to the memory are private to this process."""
        return memory_of(self.path(sha256))


# Maps files as private memory: processes of a node share one copy of each page that they do not write to.
# Python's mmap would keep a descriptor open for each file, and a model may have a thousand files.
# Files must not be truncated or overwritten while mapped; a new file replaces an old one.


def memory_of(path: Path) -> memoryview:
    """Map a file. Writes to the memory are private to this process. Raises OSError."""
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        access = mmap.PROT_READ | mmap.PROT_WRITE
        address = _LIBC.mmap(None, size, access, mmap.MAP_PRIVATE, file.fileno(), 0)
    if address == _FAILED:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(path))
    memory = (ctypes.c_char * size).from_address(address)
    # Not at exit: other exit handlers may still read the memory.
    weakref.finalize(memory, _LIBC.munmap, address, size).atexit = False
    return memoryview(memory).cast("B")
