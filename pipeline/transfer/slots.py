"""The state machine of a cell (one chunk of slots), without memory: what may follow what.

    FREE ──claim(w)──▶ CLAIMED(w) ──commit(w)──▶ DONE
      ▲  │                │   └────fail(w)────▶ FAILED
      │  └──cancel──▶ DONE│
      └──────recover(w)───┘           DONE, FAILED ──open──▶ FREE of the next generation

* A claim is one compare-and-swap, and the claim *is* the record of who owns the cell: a worker
  that dies in between leaves either FREE or CLAIMED(w), never a lost cell.
* `recover(w)` is for dead workers only: nobody else can still write there.
* Filling a cell twice is harmless: its bytes are a function of its positions.

`pipeline.transfer.station` is this machine on shared atomic words; the tests drive both with the
same random moves.
"""

from dataclasses import dataclass

from pipeline.errors import InternalError

FREE, DONE, FAILED, CLAIMED = "FREE", "DONE", "FAILED", "CLAIMED"


@dataclass(frozen=True)
class Cell:
    """The state of one cell. Every move returns a new one or raises `InternalError`."""

    generation: int = 0
    state: str = DONE
    worker: int | None = None

    def open(self) -> "Cell":
        """The consumer hands the cell out again, for the next ticket in its row."""
        self._expect("open", self.state in (DONE, FAILED))
        return Cell(self.generation + 1, FREE)

    def claim(self, worker: int) -> "Cell":
        """A worker takes the cell."""
        self._expect(f"claim by {worker}", self.state == FREE)
        return Cell(self.generation, CLAIMED, worker)

    def commit(self, worker: int) -> "Cell":
        """The owner finished: the bytes are there."""
        self._expect(f"commit by {worker}", self.state == CLAIMED and self.worker == worker)
        return Cell(self.generation, DONE)

    def fail(self, worker: int) -> "Cell":
        """The owner met an error that belongs to a sample."""
        self._expect(f"fail by {worker}", self.state == CLAIMED and self.worker == worker)
        return Cell(self.generation, FAILED)

    def recover(self, worker: int) -> "Cell":
        """The supervisor takes back what a dead worker held."""
        if self.state == CLAIMED and self.worker == worker:
            return Cell(self.generation, FREE)
        return self

    def cancel(self) -> "Cell":
        """The consumer abandons the pass: what nobody has begun is over."""
        return Cell(self.generation, DONE) if self.state == FREE else self

    def _expect(self, move: str, legal: bool) -> None:
        if not legal:
            owner = "" if self.worker is None else f"({self.worker})"
            raise InternalError(
                f"illegal move {move} of a cell that is {self.state}{owner}, "
                f"generation {self.generation}"
            )
