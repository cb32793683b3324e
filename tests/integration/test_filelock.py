"""The lock between processes: exclusive, in turn, with a limit, and never lost or leaked."""

import contextlib
import errno
import fcntl
import os
import signal
import stat
import subprocess
import sys
import threading
import time

import pytest

from seriatim.core import filelock
from seriatim.core.filelock import FileLock, LockTimeout, holder

HOLD = """
import sys
from seriatim.core.filelock import FileLock
lock = FileLock(sys.argv[1])
lock.acquire(10)
print("held", flush=True)
sys.stdin.readline()
"""
COUNT = """
import sys
from seriatim.core.filelock import FileLock
lock = FileLock(sys.argv[1] + ".lock")
for _ in range(int(sys.argv[2])):
    with lock:
        with open(sys.argv[1]) as file:
            number = int(file.read())
        with open(sys.argv[1], "w") as file:
            file.write(str(number + 1))
"""


def until(condition, seconds=10.0):
    """Waits until `condition()` holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it didn't happen"
        time.sleep(0.002)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "store.lock"


@pytest.fixture
def new(path):
    """Makes locks on the one file; closes them."""
    with contextlib.ExitStack() as stack:
        yield lambda: stack.enter_context(contextlib.closing(FileLock(path)))


@pytest.fixture
def other_process(path):
    """A process that holds the lock."""
    process = subprocess.Popen([sys.executable, "-c", HOLD, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with process:
        assert process.stdout.readline() == b"held\n"
        yield process
        process.kill()


def test_two_instances_exclude_each_other_in_one_process(new):
    first, second = new(), new()
    first.acquire(1)
    with pytest.raises(LockTimeout):
        second.acquire(0)
    first.release()
    second.acquire(0)
    assert (first.held, second.held) == (False, True)


def test_processes_exclude_each_other(tmp_path):
    counter = tmp_path / "counter"
    counter.write_text("0")
    processes = [subprocess.Popen([sys.executable, "-c", COUNT, counter, "500"]) for _ in range(3)]
    assert [process.wait(60) for process in processes] == [0, 0, 0]
    assert counter.read_text() == "1500"


def test_threads_exclude_each_other(new):
    seen = {"inside": 0, "most": 0, "turns": 0}

    def work():
        lock = new()
        for _ in range(100):
            lock.acquire(30)
            seen["inside"] += 1
            seen["most"] = max(seen["most"], seen["inside"])
            seen["turns"] += 1
            time.sleep(0)
            seen["inside"] -= 1
            lock.release()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == {"inside": 0, "most": 1, "turns": 400}


def test_a_waiter_gets_its_turn_beside_one_who_always_comes_again(new):
    """Polling for the lock would starve it: it is free for microseconds only."""
    greedy, waiter, stop = new(), new(), threading.Event()

    def hog():
        while not stop.is_set():
            greedy.acquire(10)
            time.sleep(0.005)
            greedy.release()

    thread = threading.Thread(target=hog)
    thread.start()
    try:
        for _ in range(20):
            waiter.acquire(2)
            waiter.release()
    finally:
        stop.set()
        thread.join()


def test_a_timeout_names_the_process_that_holds_it(new, other_process, path):
    with pytest.raises(LockTimeout, match=f"process {other_process.pid}") as caught:
        new().acquire(0.05)
    assert caught.value.holder_pid == other_process.pid
    assert holder(path) == other_process.pid


def test_nobody_holds_a_lock_that_is_free_or_was_never_made(new, path):
    assert holder(path) is None
    lock = new()
    lock.acquire(0)
    assert holder(path) == os.getpid()
    lock.release()
    assert holder(path) is None


def test_a_killed_holder_gives_it_up_to_one_who_waits(new, other_process):
    timer = threading.Timer(0.1, other_process.kill)
    timer.start()
    new().acquire(10)
    timer.join()


def test_a_stopped_holder_keeps_it(new, other_process):
    other_process.send_signal(signal.SIGSTOP)
    with pytest.raises(LockTimeout):
        new().acquire(0.1)


def test_a_wait_that_ran_out_serves_the_next_one(new):
    """One helper thread, however often the wait is repeated; and the lock comes to the instance that asks again."""
    first, second = new(), new()
    first.acquire(0)
    before = threading.active_count()
    for _ in range(3):
        with pytest.raises(LockTimeout):
            second.acquire(0.01)
    assert threading.active_count() == before + 1
    timer = threading.Timer(0.05, first.release)
    timer.start()
    second.acquire(10)
    timer.join()
    assert second.held
    assert threading.active_count() == before


def test_a_lock_that_comes_when_nobody_wants_it_is_let_go(new, path):
    first, second = new(), new()
    first.acquire(0)
    with pytest.raises(LockTimeout):
        second.acquire(0.01)
    first.release()
    until(lambda: not second._waiting)  # noqa: SLF001 - that the helper is done shows nowhere else
    assert holder(path) is None
    assert not second.held
    second.acquire(0)


def test_a_lock_that_its_helper_has_but_has_not_handed_on_is_not_taken_past_it(new, monkeypatch):
    """Helper and caller share one open file, where a second flock always succeeds: both would think it theirs."""
    first, second, third = new(), new(), new()
    flock, gate = fcntl.flock, threading.Event()

    def slow_to_return(fd, operation):
        flock(fd, operation)
        if operation == fcntl.LOCK_EX:
            gate.wait(10)

    monkeypatch.setattr(fcntl, "flock", slow_to_return)
    first.acquire(0)
    with pytest.raises(LockTimeout):
        second.acquire(0.01)
    first.release()
    with pytest.raises(LockTimeout):
        second.acquire(0.05)
    gate.set()
    second.acquire(10)
    until(lambda: not second._waiting)  # noqa: SLF001 - that the helper is done shows nowhere else
    assert second.held
    with pytest.raises(LockTimeout):
        third.acquire(0)


def test_timeouts_and_grants_that_meet_lose_nothing(new):
    """Waits about as long as the lock is held: whichever comes first, the lock is held once or free."""
    first, second = new(), new()
    got = 0
    for _ in range(300):
        first.acquire(10)
        timer = threading.Thread(target=lambda: (time.sleep(0.001), first.release()))
        timer.start()
        with contextlib.suppress(LockTimeout):
            second.acquire(0.0013)
            got += 1
            assert not first.held
            second.release()
        timer.join()
    first.acquire(10)
    assert got


def test_closing_while_a_wait_goes_on_neither_hangs_nor_keeps_the_lock(new, path):
    first, second = new(), new()
    first.acquire(0)
    with pytest.raises(LockTimeout):
        second.acquire(0.01)
    second.close()
    second.close()
    first.release()
    until(lambda: second._fd < 0)  # noqa: SLF001 - nor that it closed the file
    assert holder(path) is None
    with pytest.raises(RuntimeError, match="closed"):
        second.acquire(0)


def test_closing_lets_go(new, path):
    lock = new()
    lock.acquire(0)
    lock.close()
    assert holder(path) is None


def test_an_interrupted_wait_gives_the_lock_back(new, path, monkeypatch):
    first, second = new(), new()
    first.acquire(0)

    def interrupt(_predicate, _timeout):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(second._changed, "wait_for", interrupt)  # noqa: SLF001 - a signal at this very moment
        with pytest.raises(KeyboardInterrupt):
            second.acquire(1)
    first.release()
    until(lambda: holder(path) is None)
    second.acquire(1)


def test_it_is_for_one_use_at_a_time(new):
    lock = new()
    lock.acquire(0)
    with pytest.raises(RuntimeError, match="one of its own"):
        lock.acquire(0)
    lock.release()
    with pytest.raises(RuntimeError, match="isn't held"):
        lock.release()


def test_it_is_a_context_manager(new):
    lock = new()
    with lock:
        assert lock.held
    assert not lock.held


def test_a_deleted_file_is_made_anew(new, path):
    """Else one process would lock a file that nobody else can see."""
    first, second = new(), new()
    first.acquire(0)
    first.release()
    path.unlink()
    second.acquire(0)
    with pytest.raises(LockTimeout):
        first.acquire(0)


def test_only_its_owner_may_read_the_file(new, path):
    with new():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_file_system_that_has_no_locks_says_so(new, monkeypatch):
    def refuse(_fd, _operation):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(OSError, match="No locks available"):
        new().acquire(1)
    assert filelock.fcntl is fcntl


def in_child(work):
    """The result of `work()` in a forked child: whether it was true."""
    pid = os.fork()
    if pid == 0:
        code = 1
        with contextlib.suppress(BaseException):
            code = 0 if work() else 1
        os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_has_a_lock_of_its_own(new, path):
    """It doesn't hold the parent's, can't let it go, and doesn't keep it when the parent does."""
    lock = new()
    lock.acquire(0)

    def child():
        if lock.held:
            return False
        with contextlib.suppress(LockTimeout):
            lock.acquire(0)
            return False
        lock.close()
        return True

    assert in_child(child)
    assert holder(path) == os.getpid()

    ready, told = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.read(ready, 1)
        os._exit(0)
    lock.release()
    assert holder(path) is None, "the child keeps the parent's lock"
    os.write(told, b"x")
    os.waitpid(pid, 0)
    os.close(ready)
    os.close(told)
