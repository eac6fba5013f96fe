"""Settings of the process's memory allocator."""

from __future__ import annotations

import ctypes
import os

LARGE_BYTES = 256 << 10
"""Blocks from this size on are returned to the system when they are freed."""
_M_MMAP_THRESHOLD = -3


def return_large_blocks() -> None:
    """Have glibc return large blocks as soon as they are freed; does nothing with another C library.

    By default glibc raises its threshold to the largest block that was freed, up to 32 MiB, and takes smaller ones from
    the heap, which later blocks keep from shrinking. ``MALLOC_MMAP_THRESHOLD_`` of the environment has precedence.
    """
    if "MALLOC_MMAP_THRESHOLD_" in os.environ:
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, LARGE_BYTES)
