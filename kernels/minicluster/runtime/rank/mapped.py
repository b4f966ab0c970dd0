"""Files as memory of one's own: pages that nobody writes to are the node's only copy, whoever maps them.

Not by Python's mmap, which keeps a descriptor of each file open: a model may have a thousand.
The files have to stay as they are: a new one takes the place of an old one, none is cut or written over.
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


def memory_of(path: Path) -> memoryview:
    """Return a file's content. What is written to it stays in this process. Raises OSError."""
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        access = mmap.PROT_READ | mmap.PROT_WRITE
        address = _LIBC.mmap(None, size, access, mmap.MAP_PRIVATE, file.fileno(), 0)
    if address == _FAILED:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(path))
    memory = (ctypes.c_char * size).from_address(address)
    # Not at the process's end: what it holds then may still be read.
    weakref.finalize(memory, _LIBC.munmap, address, size).atexit = False
    return memoryview(memory).cast("B")
