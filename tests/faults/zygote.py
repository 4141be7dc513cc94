"""A process that has imported everything, and forks a fresh program for each cell: importing takes
longer than most cells. Lines of JSON in: cause, moment, folder. Lines out: the program's pid; a report.
"""

import json
import os
import signal
import sys
import threading
from pathlib import Path

from tests import helpers
from tests.faults import faulty, table
from tests.faults import test_table as cells
from tests.helpers import make, wait_until, walk

FOREVER_S = 60


def serve():
    for line in sys.stdin:
        job = json.loads(line)
        if (pid := os.fork()) == 0:
            os.setpgid(0, 0)
            os.close(0)
            sys.stdout = open(Path(job["folder"]) / "out", "w")  # noqa: SIM115
            sys.stderr = open(Path(job["folder"]) / "err", "w")  # noqa: SIM115
            try:
                program(**job)
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(0)
        print(pid, flush=True)
        os.waitpid(pid, 0)
        print("ended", flush=True)


def program(cause, moment, folder):
    data = faulty.Faulty(cause, moment, folder)
    loader = make(data, shuffle=False, batch_size=4, num_workers=2, prefetch_factor=2)
    if cause == "launcher":
        cells.engines.LEAVE_S = 0.5
        outcome = (
            cells._run_close(loader, data)
            if moment == "close"
            else cells._run(loader, data, cause, moment)
        )
        loader.close()
        print(json.dumps([outcome, sorted(helpers.descendants())]))
        return
    came = []

    def handler(number, frame):
        came.append(number)
        (data.folder / f"came{len(came)}").touch()
        signal.default_int_handler(number, frame)

    if cause.startswith("ctrl-c"):
        signal.signal(signal.SIGINT, handler)
    threading.Thread(target=_announce, args=(loader, data), daemon=True).start()
    found, raised = [], 0
    wanted = 1 + (cause == "ctrl-c twice")
    iterator = iter(loader)
    try:
        _reach(loader, iterator, data, moment, found)
    except KeyboardInterrupt:
        raised += 1
    try:
        if moment in ("between", "end") or loader._engine is not None:
            loader.close()  # it came into the user's own code: the workers were not meant
        wait_until(lambda: len(came) == wanted, FOREVER_S)
    except KeyboardInterrupt:
        raised += 1
    left = helpers.descendants()
    loader.load_state_dict(loader.state_dict())
    found += walk(loader)
    loader.close()
    good = sorted(found) == cells.expected()
    left |= helpers.descendants()
    print(
        json.dumps(
            ["interrupt" if good and raised in (1, wanted) else [len(found), raised], sorted(left)]
        )
    )


def _reach(loader, iterator, data, moment, found):
    """Come to the moment, say so, and wait there for the signal."""
    if moment in ("start", "first", "mid"):
        for _ in range(3 if moment == "mid" else 0):
            found += helpers.rows(loader, next(iterator))
        (data.folder / "ready").touch()  # all that was delivered is written down
        next(iterator)
        raise AssertionError("the sample should never end")
    found += helpers.rows(loader, next(iterator))
    if moment == "close":
        while not (data.folder / "struck").exists() and len(found) < 8:
            found += helpers.rows(loader, next(iterator))
        wait_until((data.folder / "struck").exists, FOREVER_S)
        (data.folder / "ready").touch()
        loader.close()
        raise AssertionError("the sample should never end")
    assert wait_until(lambda: cells._idle(loader), FOREVER_S)
    if moment == "end":
        for batch in iterator:
            found += helpers.rows(loader, batch)
        found.clear()
        loader.set_epoch(0)  # the next pass, compared like the others
    (data.folder / "struck").touch()
    (data.folder / "ready").touch()
    threading.Event().wait(FOREVER_S)


def _announce(loader, data):
    """Make a file as soon as the loader closes."""
    wait_until(lambda: loader._closing is not None, FOREVER_S)
    (data.folder / "closing").touch()


if __name__ == "__main__":
    assert set(table.MOMENTS) == {"start", "first", "mid", "between", "end", "close"}
    serve()
