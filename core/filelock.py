"""A fair, bounded, exclusive lock between the processes and threads of one host.

It is a `flock` on a file: the kernel wakes those who wait, and lets go for a process that dies, however it
dies. `flock` itself waits without a limit; so whoever must wait lets a helper thread do that, and waits for
the thread with a limit. A wait that ran out of time can't be called off: it goes on behind, serves the next
`acquire` of the same instance, and lets the lock go at once if it comes when nobody wants it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
import time
import weakref
from types import TracebackType

_PID_WIDTH = 11  # a pid is always written as long as this, so that nobody reads half of two


class LockTimeout(TimeoutError):
    """The lock wasn't free in time. `holder_pid` is the process that has it; None if that can't be told."""

    def __init__(self, message: str, holder_pid: int | None) -> None:
        super().__init__(message)
        self.holder_pid = holder_pid


class FileLock:
    """The exclusive lock on the file at `path`, which is made (mode 0600) when it is first needed.

    Every instance excludes every other, in this process as in others: have one per database connection. An
    instance is for one thread at a time and can't be taken twice. In a forked child it is a new lock, which
    the child doesn't hold. As a context manager it waits `timeout_s` seconds.
    """

    def __init__(self, path: str | os.PathLike[str], timeout_s: float = 30.0) -> None:
        self.path = os.fspath(path)
        self.timeout_s = timeout_s
        self._fd = -1
        self._closed = False
        self._reset()
        _instances.add(self)

    def _reset(self) -> None:
        self._mutex = threading.Lock()  # guards what follows
        self._changed = threading.Condition(self._mutex)
        self._held = False
        self._wanted = False  # somebody waits for the helper
        self._waiting = False  # a helper is in flock
        self._trouble: OSError | None = None  # what ended the helper

    @property
    def held(self) -> bool:
        """Whether this instance has the lock."""
        return self._held

    def acquire(self, timeout_s: float) -> None:
        """Take the lock, waiting in line for at most `timeout_s` seconds.

        Raises:
            LockTimeout: another has it; names the process.
            OSError: the file can't be opened or locked.
            RuntimeError: this instance has it already, or was closed.
        """
        deadline = time.monotonic() + timeout_s
        self._take(timeout_s)
        try:
            while os.fstat(self._fd).st_nlink == 0:  # somebody deleted the file: others lock a new one by now
                self._let_go(close=True)
                self._take(max(0.0, deadline - time.monotonic()))
            self._sign()
        except BaseException:  # an interrupt: nobody will come back to release it
            self._let_go()
            raise

    def release(self) -> None:
        """Let the lock go.

        Raises:
            RuntimeError: this instance doesn't have it.
        """
        if not self._held:
            raise RuntimeError(f"{self.path}: released a lock that isn't held")
        self._let_go()

    def close(self) -> None:
        """Let go of the lock and of the file, for good. Idempotent."""
        with self._mutex:
            self._closed = True
            self._wanted = False
            if not self._waiting:  # else the helper closes the file, when its flock returns
                self._close_file()

    def __enter__(self) -> FileLock:  # noqa: PYI034 - Self is of Python 3.11
        self.acquire(self.timeout_s)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def _take(self, timeout_s: float) -> None:
        with self._mutex:
            self._refuse_misuse()
            if self._waiting or not self._try():
                self._wait(timeout_s)

    def _refuse_misuse(self) -> None:
        if self._closed:
            raise RuntimeError(f"{self.path}: the lock was closed")
        if self._held or self._wanted:
            raise RuntimeError(f"{self.path}: this instance is in use; every connection needs one of its own")

    def _try(self) -> bool:
        if self._fd < 0:
            self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600)
        self._held = _try_flock(self._fd)
        return self._held

    def _wait(self, timeout_s: float) -> None:
        if timeout_s > 0 and not self._waiting:
            self._start_helper()
        self._wanted = True
        try:
            self._changed.wait_for(lambda: not self._wanted, timeout_s)
        except BaseException:  # an interrupt: nobody will come back to release it
            if self._held:
                self._unlock()
            raise
        finally:
            self._wanted = False
        if not self._held:
            raise self._why_not(timeout_s)

    def _start_helper(self) -> None:
        self._waiting = True  # first: an interrupt may come while the thread starts
        try:
            threading.Thread(target=self._help, name=f"waiting for {self.path}", daemon=True).start()
        except RuntimeError:  # no more threads
            self._waiting = False
            raise

    def _help(self) -> None:
        """Wait for the lock without a limit and hand it to whoever wants it then."""
        trouble = None
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX)
        except OSError as error:
            trouble = error
        with self._mutex:
            self._waiting = False
            if self._closed:
                self._close_file()
            elif self._wanted:
                self._held, self._trouble = trouble is None, trouble
                self._wanted = False
                self._changed.notify_all()
            elif trouble is None:
                self._unlock()

    def _why_not(self, timeout_s: float) -> Exception:
        if self._closed:
            return RuntimeError(f"{self.path}: the lock was closed by another thread")
        trouble, self._trouble = self._trouble, None
        if trouble is not None:
            return trouble
        pid = _read_pid(self._fd)
        return LockTimeout(f"{self.path} is held by process {pid or 'unknown'}: waited {timeout_s:g} s", pid)

    def _let_go(self, *, close: bool = False) -> None:
        with self._mutex:
            if close:
                self._close_file()
            elif self._held:
                self._unlock()

    def _sign(self) -> None:
        """Leave our pid in the file. A courtesy: a full disk must not cost the lock."""
        pid = b"%-*d\n" % (_PID_WIDTH - 1, os.getpid())
        if os.pread(self._fd, _PID_WIDTH, 0) != pid:  # half the price of a write
            with contextlib.suppress(OSError):
                os.pwrite(self._fd, pid, 0)

    def _unlock(self) -> None:
        self._held = False
        fcntl.flock(self._fd, fcntl.LOCK_UN)

    def _close_file(self) -> None:
        self._held = False
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def _forget(self) -> None:
        """In a forked child: let go of the parent's file without unlocking it."""
        self._reset()
        self._close_file()


def holder(path: str | os.PathLike[str]) -> int | None:
    """The process that has the lock on `path` now; None where nobody has.

    Raises:
        OSError: the file is there and can't be read or locked.
    """
    try:
        fd = os.open(path, os.O_RDWR)
    except FileNotFoundError:
        return None
    try:
        return None if _try_flock(fd) else _read_pid(fd)
    finally:
        os.close(fd)


def _try_flock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _read_pid(fd: int) -> int | None:
    text = os.pread(fd, _PID_WIDTH, 0).strip()
    return int(text) if text.isdigit() else None


_instances: weakref.WeakSet[FileLock] = weakref.WeakSet()


def _forget_the_parents() -> None:
    for lock in list(_instances):
        lock._forget()  # noqa: SLF001 - the module's own


os.register_at_fork(after_in_child=_forget_the_parents)
