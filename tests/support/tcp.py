"""Servers that misbehave on the wire: one that never answers, and a proxy that loses what it should pass on."""

import contextlib
import socket
import threading
from collections.abc import Iterator


def dead_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@contextlib.contextmanager
def black_hole() -> Iterator[int]:
    """The port of a server that lets connect and never answers."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as server:
        yield int(server.getsockname()[1])


@contextlib.contextmanager
def full_backlog() -> Iterator[int]:
    """The port of a server that doesn't even let connect: what is sent to it is dropped."""
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(8):
            client = stack.enter_context(socket.socket())
            client.setblocking(False)
            client.connect_ex(server.getsockname())
        yield int(server.getsockname()[1])


class Proxy:
    """Between a client and the server at `port`: passes on, and loses or delays answers when told to."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._server.getsockname()[1])
        self.lose_answers = 0  #: so many answers are read and thrown away
        self.delay_s = 0.0  #: each answer comes so much later
        self.cut = False  #: whether the connection of a lost answer is cut, too
        self._ended = threading.Event()
        self._sockets: list[socket.socket] = [self._server]
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._server.accept()
                server = socket.create_connection(("127.0.0.1", self._target))
                self._sockets += [client, server]
                for source, sink, answers in ((client, server, False), (server, client, True)):
                    thread = threading.Thread(target=self._pump, args=(source, sink, answers), daemon=True)
                    self._threads.append(thread)
                    thread.start()

    def _pump(self, source: socket.socket, sink: socket.socket, answers: bool) -> None:  # noqa: FBT001 - which way it pumps
        with contextlib.suppress(OSError):
            while piece := source.recv(1 << 16):
                if not answers:
                    sink.sendall(piece)
                    continue
                if self.lose_answers:
                    self.lose_answers -= 1
                    if self.cut:
                        break
                    continue
                if self.delay_s:
                    self._ended.wait(self.delay_s)
                sink.sendall(piece)
        for one in (source, sink):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._ended.set()
        for one in self._sockets:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
        for thread in self._threads:
            thread.join(5)

    def __enter__(self) -> "Proxy":  # noqa: PYI034 - Self is of Python 3.11
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
