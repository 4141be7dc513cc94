"""The control plane: reports from workers to their pool, over ZeroMQ. Only importer of zmq.

On Linux the socket has an abstract name: nothing stands in the file system, so nothing is left
there after SIGKILL of everything. An abstract name has no permissions, so every message starts
with a secret of 256 bits that only our own workers were given; a message without it is dropped
unread. Bodies are JSON; nothing is ever unpickled.
"""

import hmac
import json
import secrets
import sys
import time
import weakref
from dataclasses import asdict
from typing import Any

import zmq

from pipeline.errors import ConfigError
from pipeline.workers.protocol import Report

_MAX_NBYTES = 8 << 20


def _end(socket: Any, context: Any) -> None:
    socket.close(linger=0)
    context.term()


class Inbox:
    """The pool's end. Its context is its own, never the process-wide one of the user."""

    def __init__(self) -> None:
        self.secret = secrets.token_hex(32)
        self.endpoint = f"ipc://@samebatch-{secrets.token_hex(16)}"
        self._context = zmq.Context()
        try:
            self._socket = self._context.socket(zmq.PULL)
            self._socket.setsockopt(zmq.LINGER, 0)
            self._socket.setsockopt(zmq.RCVHWM, 0)
            self._socket.setsockopt(zmq.MAXMSGSIZE, _MAX_NBYTES)
            self._socket.bind(self.endpoint)
        except zmq.ZMQError as e:
            self._context.destroy(linger=0)
            raise ConfigError(
                f"cannot open the control channel of the workers: {e}",
                do="close files or raise the limit of open files (ulimit -n); or use num_workers=0",
            ) from e
        # A loader may end in a collected cycle; its socket and context must not be part of that cycle,
        # or they are finalised before it, in the wrong order, and wait for ever.
        self._finalize = weakref.finalize(self, _end, self._socket, self._context)
        self._finalize.atexit = False  # sockets of daemon threads: the process takes them along

    def receive(self, timeout_s: float = 0.0) -> Report | None:
        """Return the next report, or None if none comes within `timeout_s`."""
        deadline = time.monotonic() + timeout_s
        while self._socket.poll(max(0, int(1000 * (deadline - time.monotonic()))), zmq.POLLIN):
            parts = self._socket.recv_multipart()
            if len(parts) == 2 and hmac.compare_digest(parts[0], self.secret.encode()):
                return Report(**json.loads(parts[1]))
        return None

    def close(self) -> None:
        """Close the socket and its context."""
        self._socket.close(linger=0)
        self._context.term()
        self._finalize.detach()


class Outbox:
    """A worker's end."""

    def __init__(self, endpoint: str, secret: str) -> None:
        self._secret = secret.encode()
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.PUSH)
        self._socket.setsockopt(zmq.SNDHWM, 0)
        self._socket.setsockopt(zmq.LINGER, 2000)
        self._socket.connect(endpoint)

    def send(self, report: Report) -> None:
        """Hand the report to the sender thread."""
        body = json.dumps(asdict(report), default=str).encode("utf-8", "backslashreplace")
        self._socket.send_multipart([self._secret, body])

    def close(self) -> None:
        """Flush and close."""
        self._socket.close()
        self._context.term()


if sys.platform != "linux":  # pragma: no cover
    raise ImportError("samebatch's worker processes need Linux (memfd, futex, abstract sockets)")
