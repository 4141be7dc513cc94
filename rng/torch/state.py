"""Where dropout is: the step, and the first row of this process's batch, in device memory.

    mask of an element = f(seed, layer's name, step, global sample row, column)

Both numbers are read by the kernels from the device, and moved by operations of the device: a CUDA graph that
captures a step and `advance()` makes the next step's masks at each replay.
"""

from collections.abc import Callable
from typing import Any

import torch

from rng import address, generator

_STEPS = 1 << 32
_WHOLE_NUMBERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


class DropoutState(torch.nn.Module):
    """The address of a training step's dropout masks.

    Args:
        seed: in [0, 2**64). None: that of `rng.manual_seed`, or one from the operating system.
        device: of `cell`; None: the CPU. It moves with the module (`state.to(device)`).
        step: in [0, 2**32).
        first_row: the global number of the first row (sample) that this process works on: with a global
            batch split into blocks, rank * rows of a rank. A row's mask does not depend on who has it.

    Attributes:
        seed: the seed; another one may be given.
        cell: int64[2] on the device, (step, first row).

    It is a module so that a model may hold it: `bind` makes it a submodule, whose seed and step are in the
    model's `state_dict` (as extra state: it is no buffer, which DistributedDataParallel would overwrite with
    rank 0's). The first row is the process's own and is not saved: a checkpoint fits any world size.

    Raises:
        TypeError, ValueError: a number that is not an int, or out of range.

    >>> state = DropoutState(seed=42)
    >>> state.advance()
    >>> state.step, state.first_row
    (1, 0)
    """

    def __init__(
        self,
        seed: int | None = None,
        device: torch.device | str | None = None,
        step: int = 0,
        first_row: int = 0,
    ) -> None:
        super().__init__()
        if seed is None:
            seed = generator.default_seed()
        self._keys: dict[str, int] = {}
        self.seed = generator.entropy_seed() if seed is None else seed
        place = [_step(step), _row(first_row)]
        # Outside of inference mode: backward passes look at the version of the cell.
        with torch.inference_mode(False):
            self.cell = torch.tensor(place, dtype=torch.int64, device=device or "cpu")

    @property
    def seed(self) -> int:
        """The seed."""
        return self._seed

    @seed.setter
    def seed(self, seed: int) -> None:
        self._seed = address.check_seed(seed)
        self._keys.clear()

    # ------------------------------------------------------------ on the device
    def advance(self) -> None:
        """Go to the next step, on the device. After the backward pass: it makes the masks again.

        Step 2**32 has the masks of step 0: a device raises nothing.
        """
        with torch.no_grad():
            self.cell[:1].add_(1)

    def seek(self, step: int | torch.Tensor | None = None, first_row: Any = None) -> None:
        """Go to a step, or to another first row (of the next micro-batch, say), on the device.

        Args:
            step: in [0, 2**32), or an int64 tensor of one element, copied on the device without a check of
                its range: masks see its low 32 bits.
            first_row: in [0, 2**63), or such a tensor.

        Raises:
            TypeError, ValueError: a number that is not an int, a tensor of another kind, or out of range.
                The state has not moved then.
        """
        places = _checked("step", step, _step), _checked("first_row", first_row, _row)
        with torch.no_grad():
            for index, value in enumerate(places):
                if isinstance(value, torch.Tensor):
                    self.cell[index : index + 1].copy_(value.reshape(1))
                elif value is not None:
                    self.cell[index : index + 1].fill_(value)

    def forward(self, x: Any) -> Any:
        """Return x: a Sequential that holds the state calls it as a layer."""
        return x

    @property
    def step(self) -> int:
        """The step; waits for the device."""
        return int(self.cell[0])

    @property
    def first_row(self) -> int:
        """The global number of this process's first row; waits for the device."""
        return int(self.cell[1])

    def key(self, name: str) -> int:
        """Return the 64-bit key of a layer's masks.

        Raises:
            TypeError: the name is not a str.
        """
        key = self._keys.get(name)
        if key is None:
            key = self._keys[name] = _key(self.seed, name)
        return key

    # ------------------------------------------------------------ state and moves
    def get_extra_state(self) -> torch.Tensor:
        """Return int64[2], (seed, step), on the device."""
        seed = self.seed - (1 << 64) if self.seed >> 63 else self.seed
        with torch.no_grad():
            return torch.cat([torch.full_like(self.cell[:1], seed), self.cell[:1]])

    def set_extra_state(self, state: torch.Tensor) -> None:
        """Go to the seed and the step of `get_extra_state`; the first row stays.

        Raises:
            ValueError: not int64[2].
        """
        if not isinstance(state, torch.Tensor) or state.shape != (2,) or state.dtype != torch.int64:
            raise ValueError(f"the state of dropout is int64[2], (seed, step), got {state!r}")
        self.seek(state[1])  # any that `advance` may have reached: masks see its low 32 bits
        self.seed = int(state[0]) & address.M64

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Any:
        """Move the cell as a module's tensors move; its numbers survive what makes new, empty tensors."""
        super()._apply(fn, recurse)
        device = fn(self.cell).device
        if device != self.cell.device and device.type != "meta":
            self.cell = self.cell.to(device)
        return self

    def extra_repr(self) -> str:
        """Return the seed and the device."""
        return f"seed={self.seed}, device={self.cell.device}"


def _key(seed: int, name: str) -> int:
    return address.named(address.mix64(seed), name)


_key._dynamo_marked_constant = True  # type: ignore[attr-defined]  # hashes: not to be traced


def _checked(name: str, value: Any, check: Callable[[int], int]) -> Any:
    """Return a number within its range, or a tensor of one whole number, or None."""
    if not isinstance(value, torch.Tensor):
        return None if value is None else check(value)
    if value.dtype not in _WHOLE_NUMBERS:
        raise TypeError(f"{name} must be an int or an int64 tensor, got {value.dtype}")
    if value.numel() != 1:
        raise ValueError(f"{name} must be a tensor of one element, got one of {value.numel()}")
    return value


def _step(step: int) -> int:
    number = address.whole("step", step)
    if not 0 <= number < _STEPS:
        raise ValueError(f"step must be in [0, 2**32), got {number}")
    return number


def _row(row: int) -> int:
    number = address.whole("first_row", row)
    if not 0 <= number < 1 << 63:
        raise ValueError(f"first_row must be in [0, 2**63), got {number}")
    return number
