"""The fault table: what happens for each cause at each moment. `docs/faults.md` shows it, and
`test_table.py` makes each of its cells happen.
"""

MOMENTS = {
    "start": "while a worker starts (unpickles your data set)",
    "first": "in the first sample of a worker",
    "mid": "in the middle of a sample",
    "between": "between two batches, the workers idle",
    "end": "at the end of an epoch",
    "close": "while the loader closes",
}

OUTCOMES = {
    "same": "recovered: every batch arrives, with equal bytes",
    "sample": "`SampleError` with type, message, traceback, path, position; the next pass begins with that batch",
    "begin": "`WorkerError` or `ConfigError`: the worker could not begin, with its traceback",
    "timeout": '`WorkerError` "DataLoader timed out", with the stack of each worker; the next pass begins with that batch',
    "yours": "your own loop's error, untouched; the iterator goes on with the next batch",
    "interrupt": "one `KeyboardInterrupt`; the next pass begins with the batch that was due",
    "quiet": "`close()` returns in bounded time; nothing is left; the state is right",
    "gone": "all workers are gone within 3 s; no file, descriptor, memory or name is left",
}

# cause -> what it is, outcome at each moment
TABLE = {
    "exception": (
        "an exception",
        {"start": "begin", "first": "sample", "mid": "sample", "between": "yours", "end": "sample", "close": "quiet"},
    ),
    "exit": (
        "`sys.exit`",
        {"start": "begin", "first": "sample", "mid": "sample", "between": "yours", "end": "sample", "close": "quiet"},
    ),
    "memory": (
        "an allocation fails (`RLIMIT_AS`)",
        {"start": "begin", "first": "sample", "mid": "sample", "between": "yours", "end": "sample", "close": "quiet"},
    ),
    "_exit": (
        "`os._exit`, also from a thread of yours",
        {"start": "same", "first": "same", "mid": "same", "between": "same", "end": "same", "close": "quiet"},
    ),
    "segfault": (
        "a segmentation fault, also from a thread of yours",
        {"start": "same", "first": "same", "mid": "same", "between": "same", "end": "same", "close": "quiet"},
    ),
    "kill": (
        "SIGKILL (the kernel's out-of-memory killer)",
        {"start": "same", "first": "same", "mid": "same", "between": "same", "end": "same", "close": "quiet"},
    ),
    "term": (
        "SIGTERM to a worker",
        {"start": "same", "first": "same", "mid": "same", "between": "same", "end": "same", "close": "quiet"},
    ),
    "stuck": (
        "a worker that stands still (a sample that never ends; SIGSTOP), with `timeout`",
        {"start": "timeout", "first": "timeout", "mid": "timeout", "between": "same", "end": "same", "close": "quiet"},
    ),
    "launcher": (
        "the launcher is killed",
        {"start": "same", "first": "same", "mid": "same", "between": "same", "end": "same", "close": "quiet"},
    ),
    "parent": (
        "your process gets SIGKILL",
        {"start": "gone", "first": "gone", "mid": "gone", "between": "gone", "end": "gone", "close": "gone"},
    ),
    "ctrl-c": (
        "Ctrl-C, to the whole group",
        {"start": "interrupt", "first": "interrupt", "mid": "interrupt", "between": "interrupt", "end": "interrupt", "close": "interrupt"},
    ),
    "ctrl-c twice": (
        "Ctrl-C, and again while the first one is being handled",
        {"start": "interrupt", "first": "interrupt", "mid": "interrupt", "between": "interrupt", "end": "interrupt", "close": "interrupt"},
    ),
}  # fmt: skip

SOFT = ("exception", "exit", "memory")
HARD = ("_exit", "segfault", "kill", "term")


def markdown():
    """The table as it stands in docs/faults.md."""
    letters = dict(zip(OUTCOMES, "ABCDEFGH", strict=True))
    lines = ["| cause | " + " | ".join(MOMENTS) + " |", "|---" * (len(MOMENTS) + 1) + "|"]
    for text, cells in TABLE.values():
        lines.append(f"| {text} | " + " | ".join(letters[cells[m]] for m in MOMENTS) + " |")
    lines += ["", "| | what happens |", "|---|---|"]
    lines += [f"| {letters[name]} | {text} |" for name, text in OUTCOMES.items()]
    lines += ["", "| moment | |", "|---|---|"]
    lines += [f"| {name} | {text} |" for name, text in MOMENTS.items()]
    return "\n".join(lines) + "\n"
