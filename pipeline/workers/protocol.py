"""What workers and their pool say to each other, and a worker's life.

    STARTING ─▶ IDLE ⇄ WORKING ─▶ LEFT        (SIGKILL, segfault, … at any moment)
                  ⇅
               PLACING (fast mode: waits for a free place)

Work and stop travel through the arena's words. The channel carries what is rare and long:
`watch` (how to see its stacks) and `hello` once, `error` for each failed sample, `crash` when the worker itself cannot go on.
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import Any


class Stage(IntEnum):
    """What a worker is doing; it writes this into its line of the arena."""

    STARTING = 0
    IDLE = 1
    WORKING = 2
    PLACING = 3
    LEFT = 4


@dataclass(frozen=True)
class Report:
    """One message of a worker.

    Attributes:
        kind: "watch", "hello", "error" or "crash".
        worker: index in the pool.
        pid: of its process.
        body: JSON-able facts; see `pipeline.workers.process`.
    """

    kind: str
    worker: int
    pid: int
    body: dict[str, Any]


PATIENCE_S = 0.05  # longest sleep between two looks at one's parent or children
EXIT_LEFT = 0  # exit status of a worker that was told to stop
EXIT_CRASH = 70  # its own machinery failed; a `crash` report says how
EXIT_ORPHAN = 71  # its parent is gone
