"""What figures were measured on."""

from __future__ import annotations

import os
import platform
import sqlite3
import statistics
import tempfile
import time


def describe_machine() -> str:
    """What the figures were measured on."""
    return (
        f"{os.cpu_count()} cores ({platform.machine()}), {platform.system()} {platform.release()}, "
        f"Python {platform.python_version()}, "
        f"SQLite {sqlite3.sqlite_version}; a 4 KiB write and fsync here takes {fsync_ms():.2f} ms (median of 200)"
    )


def fsync_ms() -> float:
    """What durability costs here."""
    times = []
    with tempfile.NamedTemporaryFile(prefix="seriatim-bench-") as file:
        for _ in range(200):
            began = time.perf_counter()
            os.pwrite(file.fileno(), b"x" * 4096, 0)
            os.fsync(file.fileno())
            times.append((time.perf_counter() - began) * 1000)
    return statistics.median(times)
