"""Everything that decided one sample: its address, the words that were read there, what came of them.

Nothing is worked out a second time: words, parameters and pixels come from the kernels and functions
that make the sample.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from pipeline import datasets
from pipeline.recipe import Recipe
from rng import address


@dataclass(frozen=True)
class Draws:
    """What one op, function or seeding drew for a sample.

    Attributes:
        op: its name; "generators" is the seeding of `random`, `numpy.random` and torch's generator.
        number: the op number in its addresses.
        address: purpose, op, lane, n and phase; {} if nothing is drawn.
        counters: the four counter words of each block read.
        words: the four words of each of these blocks; of a function's stream the first four.
        result: what came of them: crop corner, "flip", "erase", rectangle and attempt, seeds.
    """

    op: str
    number: int
    address: Mapping[str, int]
    counters: tuple[tuple[int, ...], ...]
    words: tuple[tuple[int, ...], ...]
    result: Mapping[str, Any]


@dataclass(frozen=True)
class Explanation:
    """One sample of a run.

    Attributes:
        sample_id, path: which sample, and the dataset's name of it.
        epoch, position: where in the order.
        split, phase: the packed word of the addresses.
        lane, n: the sample is the n-th of its lane.
        seed, key: the run's seed; the 64-bit key that all words hang on.
        draws: in the order in which they are made.
        digests: {field: 16 hex digits} of the finished sample, as in a log of all bytes.
    """

    sample_id: int
    path: str
    epoch: int
    position: int
    split: str
    phase: int
    lane: int
    n: int
    seed: int
    key: int
    draws: tuple[Draws, ...]
    digests: Mapping[str, str]

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-able facts."""
        return asdict(self)

    def __str__(self) -> str:
        lines = [
            f"sample {self.sample_id} ({self.path})",
            f"  epoch {self.epoch}  position {self.position}  split {self.split}  "
            f"phase {self.phase}  lane {self.lane}  n {self.n}",
            f"  seed {self.seed} = 0x{self.seed:016x}  key 0x{self.key:016x}",
        ]
        for one in self.draws:
            where = (
                " ".join(f"{k}={v}" for k, v in one.address.items())
                or "no stream; it may read the generators above"
            )
            result = "  ".join(f"{k}={v}" for k, v in one.result.items())
            lines.append(f"  {one.op}  {result}".rstrip())
            lines.append(f"    address: {where}")
            for counter, words in zip(one.counters, one.words, strict=True):
                lines.append(f"    counter {_hex(counter)} -> words {_hex(words)}")
        lines += [f"  digest {name}: {digest}" for name, digest in self.digests.items()]
        return "\n".join(lines)


def _hex(words: Sequence[int]) -> str:
    return " ".join(f"{w:08x}" for w in words)


def explained(
    recipe: Recipe,
    digests: Mapping[str, str],
    sample_id: int,
    position: int,
    epoch: int,
    phase: int,
    split: str,
    seed: int,
) -> Explanation:
    """Return what decided a sample.

    Args:
        recipe: that makes it.
        digests: of the finished sample.
        sample_id, position, epoch, phase, split, seed: of the sample.
    """
    n, lane = divmod(position, recipe.lanes)
    draws = tuple(_draws(one) for one in recipe.explain(sample_id, position, phase))
    return Explanation(
        sample_id, datasets.describe(recipe.dataset, sample_id), epoch, position, split, phase,
        lane, n, seed, recipe.key, draws, digests,
    )  # fmt: skip


def _draws(entry: Mapping[str, Any]) -> Draws:
    """Return one entry of `Recipe.explain` in one form, whatever made it."""
    rest = dict(entry)
    op, number = str(rest.pop("op")), int(rest.pop("number", 0))
    words = tuple(tuple(block) for block in rest.pop("words", ()))
    counters = tuple(tuple(c) for c in rest.pop("counters", ()))[: len(words)]
    where = rest.pop("address", None) or rest.pop("stream", None) or {}
    rest.pop("stream", None)
    if counters and not where:
        where = address_of(counters[0])
    if where and not counters and words:
        counters = (_first_counter(where),)
    return Draws(op, number, where, counters, words, rest)


def address_of(counter: Sequence[int]) -> dict[str, int]:
    """Return purpose, op, lane, n and phase of the block with these counter words."""
    fields = address.decode((counter[0], counter[1], counter[2], counter[3]))
    position = fields.pop("position")
    return {
        "purpose": fields["purpose"], "op": fields["op"], "lane": fields["lane"],
        "n": position >> 24, "phase": fields["phase"],
    }  # fmt: skip


def _first_counter(where: Mapping[str, int]) -> tuple[int, ...]:
    place = address.sample_position(where["n"])
    return address.counter(where["purpose"], where["op"], where["lane"], where["phase"], place)
