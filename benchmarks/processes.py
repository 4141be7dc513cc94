"""What a tree of processes costs: processor seconds and memory, read from /proc."""

import os
from pathlib import Path

_TICK_S = 1 / os.sysconf("SC_CLK_TCK")


def _stats() -> dict[int, list[str]]:
    """Return the fields of /proc/PID/stat from the state on, for every process."""
    found = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                text = Path(f"/proc/{name}/stat").read_text()
            except OSError:  # gone meanwhile
                continue
            found[int(name)] = text.rpartition(")")[2].split()
    return found


def tree(root: int) -> dict[int, list[str]]:
    """Return a process and its descendants, with their stat fields."""
    stats = _stats()
    children: dict[int, list[int]] = {}
    for pid, fields in stats.items():
        children.setdefault(int(fields[1]), []).append(pid)
    found, ahead = {}, [root]
    while ahead:
        pid = ahead.pop()
        if pid in stats:
            found[pid] = stats[pid]
        ahead += children.get(pid, [])
    return found


def cpu_s(root: int) -> float:
    """Return the processor seconds of a tree, of children that ended too."""
    ticks = sum(int(fields[k]) for fields in tree(root).values() for k in (11, 12, 13, 14))
    return ticks * _TICK_S


def busy_s() -> float:
    """Return the processor seconds of the whole machine, idle and waiting left out."""
    ticks = [int(v) for v in Path("/proc/stat").read_text().split("\n")[0].split()[1:9]]
    return (sum(ticks) - ticks[3] - ticks[4]) * _TICK_S


def memory_mb(root: int) -> tuple[float, float, int]:
    """Return (PSS, PSS without pages of files, processes) of a tree; MB are 10^6 bytes."""
    whole = own = 0
    pids = tree(root)
    for pid in pids:
        try:
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        except OSError:
            continue
        sizes = {line.split(":")[0]: line.split()[1] for line in lines[1:]}
        whole += int(sizes.get("Pss", 0))
        own += int(sizes.get("Pss_Anon", 0)) + int(sizes.get("Pss_Shmem", 0))
    return whole * 1024 / 1e6, own * 1024 / 1e6, len(pids)
