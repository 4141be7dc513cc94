"""Makes docs/benchmarks.md and docs/benchmarks.svg from results/peers.json; needs no package.

    python benchmarks/report.py [RESULTS.json]

Every figure is a median over rounds; a ratio is the median of the ratios of the same round, with the
least and the most beside it. Contenders of the wide tier ran once, so their ratios have no spread.
"""

import json
import statistics
import sys
from pathlib import Path
from typing import Any

import workloads
from peers import PEERS

ROOT = Path(__file__).resolve().parent.parent
OURS = ("samebatch", "samebatch_threads", "samebatch_fast", "samebatch_fast_threads")
WORKS = ("W1", "W2", "W3", "W4", "W5", "W6", "W7")


class Results:
    """The measurements of one file.

    Attributes:
        rates: work -> contender ("torch:2") -> round -> what was measured.
    """

    def __init__(self, path: Path) -> None:
        body = json.loads(path.read_text())
        self.machine, self.skipped, self.failed = body["machine"], body["skipped"], body["failed"]
        self.slow_ms = body["slow_ms"]
        self.jobs = body["jobs"]
        self.rates: dict[str, dict[str, dict[int, dict[str, Any]]]] = {}
        for job in self.of("rate"):
            contender = f"{job['peer']}:{job['workers']}"
            rounds = self.rates.setdefault(job["work"], {}).setdefault(contender, {})
            rounds[job["round"]] = job["result"]

    def of(self, measure: str) -> list[dict[str, Any]]:
        return [job for job in self.jobs if job["measure"] == measure]

    def median(self, work: str, contender: str, what: str) -> float:
        rounds = self.rates[work][contender].values()
        return statistics.median(result[what] for result in rounds)

    def ratio(self, work: str, over: str, under: str) -> tuple[float, float, float, int]:
        """Return (median, least, most, rounds) of rate over rate."""
        a, b = self.rates[work][over], self.rates[work][under]
        both = sorted(set(a) & set(b))
        if len(both) < 2:
            one = self.median(work, over, "rate") / self.median(work, under, "rate")
            return one, one, one, 1
        found = [a[k]["rate"] / b[k]["rate"] for k in both]
        return statistics.median(found), min(found), max(found), len(both)

    def best(self, work: str, ours: bool) -> str | None:
        """Return the fastest contender; of ours only those in reproducible mode."""
        names = [
            name
            for name in self.rates.get(work, {})
            if (name.partition(":")[0] in OURS) == ours and "fast" not in name.partition(":")[0]
        ]
        return max(names, key=lambda n: self.median(work, n, "rate"), default=None)


def shown(ratio: tuple[float, float, float, int]) -> str:
    middle, least, most, rounds = ratio
    return f"{middle:.2f}" if rounds < 2 else f"{middle:.2f} ({least:.2f} to {most:.2f})"


def short(value: float) -> str:
    if value >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def table(head: list[str], rows: list[list[str]]) -> list[str]:
    lines = ["| " + " | ".join(head) + " |", "|---" + "|---:" * (len(head) - 1) + "|"]
    return [*lines, *("| " + " | ".join(row) + " |" for row in rows), ""]


# ---------------------------------------------------------------- sections
def machine(found: Results) -> list[str]:
    facts = found.machine
    lines = [
        f"{facts['cpu']}, {facts['cores']} cores; Python {facts['python']}; "
        f"commit {facts['commit']}; {facts['date']}.",
        "",
    ]
    wanted = {
        "samebatch": ("numpy", "numba", "pillow", "opencv-python-headless"),
        "torch": ("torch", "torchdata", "opencv-python-headless", "pillow"),
        "spdl": ("spdl",),
        "grain": ("grain",),
        "dali": ("nvidia-dali-cuda130",),
        "ffcv": ("ffcv",),
        "streaming": ("mosaicml-streaming", "numpy"),
        "litdata": ("litdata",),
        "webdataset": ("webdataset",),
    }
    for venv, installed in facts["versions"].items():
        names = [f"{n} {installed[n]}" for n in wanted.get(venv, ()) if n in installed]
        lines.append(f"* {venv}: {', '.join(names)}")
    return [*lines, ""]


def summary(found: Results) -> list[str]:
    rows = []
    for work in WORKS:
        ours, peer = found.best(work, True), found.best(work, False)
        if not ours or not peer:
            continue
        row = [
            f"{work}: {workloads.work(work).text}",
            f"{short(found.median(work, ours, 'rate'))} ({ours})",
            f"{short(found.median(work, peer, 'rate'))} ({peer})",
            shown(found.ratio(work, ours, peer)),
        ]
        torch = "torch:2" if "torch:2" in found.rates[work] else None
        row.append(shown(found.ratio(work, ours, torch)) if torch else "-")
        row.append(_modes(found, work))
        rows.append(row)
    head = ["workload", "ours, samples/s", "best peer", "times best peer", "times torch, 2 workers",
            "reproducible / fast, 2 workers"]  # fmt: skip
    return table(head, rows)


def _modes(found: Results, work: str) -> str:
    over, under = "samebatch:2", "samebatch_fast:2"
    both = {over, under} <= set(found.rates[work])
    return shown(found.ratio(work, over, under)) if both else "-"


def lost(found: Results) -> list[str]:
    """Say where a peer is ahead, in every measure."""
    measures = (
        ("rate", "samples/s", True),
        ("first_batch_s", "s to the first batch", False),
        ("turnover_ms", "ms of turnover", False),
        ("cpu_s_per_1000", "processor s for 1,000 samples", False),
        ("pss_mb", "MB of memory", False),
        ("import_s", "s of import", False),
    )
    lines = []
    for work in WORKS:
        contenders = found.rates.get(work, {})
        ours = [n for n in contenders if n.partition(":")[0] in OURS and "fast" not in n]
        peers = [n for n in contenders if n.partition(":")[0] not in OURS]
        for what, unit, high in measures if ours and peers else ():
            sign = 1 if high else -1

            def value(name: str, work=work, what=what, sign=sign) -> float:
                return sign * found.median(work, name, what)

            us, they = max(ours, key=value), max(peers, key=value)
            if value(they) > value(us):
                lines.append(
                    f"* {work}: {they} has {short(abs(value(they)))} {unit}, "
                    f"ours at best {short(abs(value(us)))} ({us})"
                )
    return [*(lines or ["In nothing that was measured."]), ""]


def details(found: Results) -> list[str]:
    lines = []
    for work in WORKS:
        contenders = found.rates.get(work)
        if not contenders:
            continue
        one = workloads.work(work)
        lines += [f"### {work}: {one.text}, batch {one.batch}", ""]
        base = found.best(work, False)
        ordered = sorted(contenders, key=lambda n: -found.median(work, n, "rate"))
        rows = [
            [
                name,
                short(found.median(work, name, "rate")),
                shown(found.ratio(work, name, base)) if base else "-",
                str(len(contenders[name])),
                f"{found.median(work, name, 'cpu_s_per_1000'):.4f}",
                f"{found.median(work, name, 'first_batch_s'):.2f}",
                f"{found.median(work, name, 'turnover_ms'):.2f}",
                f"{found.median(work, name, 'pss_mb'):.0f} "
                f"({found.median(work, name, 'pss_own_mb'):.0f})",
                f"{found.median(work, name, 'import_s'):.2f}",
                f"{found.median(work, name, 'foreign_cores'):.2f}",
            ]
            for name in ordered
        ]
        head = ["contender:workers", "samples/s", f"times {base}", "rounds", "CPU s / 1,000",
                "first batch, s", "turnover, ms", "PSS, MB (without files)", "import, s",
                "foreign cores"]  # fmt: skip
        lines += table(head, rows)
    return lines


def same(found: Results) -> list[str]:
    """Who gives the same bytes for any number of workers."""
    seen: dict[tuple[str, str], dict[int, list[Any]]] = {}
    for job in found.of("bytes"):
        key = job["peer"], job["work"]
        seen.setdefault(key, {})[job["workers"]] = job["result"]["batches"]
    rows = []
    for (peer, work), by_workers in seen.items():
        if len(by_workers) < 2:
            continue
        checksums = list(by_workers.values())
        bytes_same = all([b for _, b in c] == [b for _, b in checksums[0]] for c in checksums)
        ids_same = all([i for i, _ in c] == [i for i, _ in checksums[0]] for c in checksums)
        counts = ", ".join(map(str, sorted(by_workers)))
        rows.append([f"{peer}, {work}", counts, _yes(ids_same), _yes(bytes_same)])
    return table(["loader", "workers", "same ids", "same bytes"], rows) if rows else []


def _yes(value: bool | None) -> str:
    return {True: "yes", False: "**no**", None: "not checked"}[value]


def resumed(found: Results) -> list[str]:
    rows = [
        [
            f"{job['peer']}:{job['workers']}, {job['work']}",
            f"{job['result']['resume_s']:.3f}",
            _yes(job["result"]["ids_right"]),
            _yes(job["result"]["bytes_right"]),
        ]
        for job in found.of("resume")
    ]
    head = ["loader:workers", "s to the next batch", "right ids", "right bytes"]
    return table(head, rows) if rows else []


def floors(found: Results) -> list[str]:
    runs = [job["result"] for job in found.of("floors")]
    rows = []
    for name in runs[0] if runs else ():
        values = [run[name] for run in runs if name in run]
        spread = f"{short(min(values))} to {short(max(values))}"
        rows.append([name, short(statistics.median(values)), spread])
    return table(["floor", "median", "least to most"], rows) if rows else []


def compiled(found: Results) -> list[str]:
    lines = []
    for job in found.of("compile"):
        result = job["result"]
        each = ", ".join(
            f"{work} {result[f'{work} fresh']:.1f} s (warm {result[f'{work} warm']:.1f} s)"
            for work in ("W1", "W2", "W3", "W4", "W5")
        )
        lines += [
            f"With an empty kernel cache, one workload after the other on a machine that is new to "
            f"samebatch, compilation takes {result['compile_s']:.1f} s in all. Import and first "
            f"batch: {each}.",
            "",
        ]
    return lines


# ---------------------------------------------------------------- plot
def plot(found: Results) -> str:
    """Return an SVG: for each workload the rates of ours, torch and the best peer, to the best."""
    rows: list[tuple[str, str, float, str]] = []
    for work in WORKS:
        ours, peer = found.best(work, True), found.best(work, False)
        if not ours or not peer:
            continue
        names = dict.fromkeys([ours, peer, "torch:2"])
        chosen = [n for n in names if n in found.rates[work]]
        most = max(found.median(work, n, "rate") for n in chosen)
        for name in chosen:
            rate = found.median(work, name, "rate")
            kind = "ours" if name == ours else "torch" if name == "torch:2" else "peer"
            rows.append((work, f"{name}  {short(rate)}/s", rate / most, kind))
    colours = {"ours": "#2563a8", "peer": "#d08a1d", "torch": "#8a8f98"}
    parts, y, last = [], 12, ""
    for work, text, share, kind in rows:
        if work != last:
            y += 10
            parts.append(f'<text x="8" y="{y + 12}" font-weight="bold">{work}</text>')
            last = work
        width = max(1.0, 380 * share)
        parts.append(
            f'<rect x="44" y="{y}" width="{width:.1f}" height="15" fill="{colours[kind]}"/>'
            f'<text x="{48 + width:.1f}" y="{y + 12}">{text}</text>'
        )
        y += 18
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="680" height="{y + 12}" '
        'font-family="sans-serif" font-size="12" fill="#222">'
        f'<rect width="680" height="{y + 12}" fill="#fff"/>{"".join(parts)}</svg>\n'
    )


def document(found: Results, source: str) -> str:
    setups = [f"* `{p.name}`: {p.text}" for p in PEERS.values()]
    left_out = [f"* {name}: {why}" for name, why in found.skipped.items()]
    for job, why in found.failed.items():
        left_out.append(f"* {' '.join(job.split())} failed: `{why.splitlines()[-1][:200]}`")
    text = [
        "# Benchmarks",
        "",
        f"Made by `make bench-report` from `{source}`; do not edit. `make bench-peers` measures again.",
        "",
        *machine(found),
        "The consumer sums every batch, whoever made it. A rate counts from the first batch of an",
        "epoch to the first batch of the next. Each contender runs in a fresh process; in each round",
        "they take turns. Compare within a table, not across machines. `name:2` is with two workers.",
        "",
        *summary(found),
        "![rates of ours, the best peer and torch](benchmarks.svg)",
        "",
        "## Where peers are ahead",
        "",
        *lost(found),
        "## Same bytes whatever the workers do",
        "",
        *same(found),
        "## Resume at 90 % of an epoch",
        "",
        "W1 has 50,000 samples, R ten million items in batches of 1,000. Loaders without a state are",
        "not in it: they go through the first nine tenths again.",
        "",
        *resumed(found),
        "## Floors of this machine",
        "",
        *floors(found),
        *compiled(found),
        "## Every workload",
        "",
        f"W7's slow files take {found.slow_ms} ms more to open, for every loader alike "
        "(`benchmarks/slow_files.c`).",
        '"PSS" is the memory of the whole tree of processes; in brackets without pages of files.',
        '"Foreign cores" is what other programs used meanwhile: above 0.15 mistrust the line.',
        "",
        *details(found),
        "## How each is set up",
        "",
        *setups,
        "",
        *(["## Left out", "", *left_out, ""] if left_out else []),
    ]
    return "\n".join(text).rstrip() + "\n"


def main() -> None:
    given = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "benchmarks/results/peers.json"
    target = ROOT / "docs" if len(sys.argv) < 3 else Path(sys.argv[2])
    found = Results(given)
    source = given.resolve()
    name = source.relative_to(ROOT) if source.is_relative_to(ROOT) else source.name
    (target / "benchmarks.svg").write_text(plot(found))
    (target / "benchmarks.md").write_text(document(found, str(name)))
    print(f"written: {target / 'benchmarks.md'} and benchmarks.svg")


if __name__ == "__main__":
    main()
