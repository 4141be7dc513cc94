"""The Dropout layer, and the names that its masks hang on.

model = Model()                      # rng.torch.Dropout(0.1) in it
state = bind(model, DropoutState(seed=7))
loop: loss.backward(); optimizer.step(); state.advance()
"""

from typing import Any

import torch

from rng.torch import masks
from rng.torch.state import DropoutState

# What wrappers put into a module's path: a name must not depend on how the model is wrapped.
_WRAPPERS = {"_orig_mod", "module", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"}


def qualified(name: str) -> str:
    """Return a module's or parameter's name without the parts that wrappers put into it.

    Wrappers: torch.compile, DistributedDataParallel and DataParallel, FSDP, checkpoint wrappers.

    >>> qualified("_orig_mod.layers.0._checkpoint_wrapped_module.fc1.weight")
    'layers.0.fc1.weight'
    """
    return ".".join(part for part in name.split(".") if part not in _WRAPPERS)


class Dropout(torch.nn.Module):
    """Dropout whose mask depends on (seed, name, step, global sample row, column) alone.

    Args:
        p: chance to drop an element, in [0, 1].
        state: the step and the first row; None: given by `bind`.
        name: None: the module's path in the model, given by `bind`.

    In evaluation mode the input is returned as it is. A layer that is called twice in one step gives the
    same mask twice: use two layers.

    Raises:
        ValueError: p out of range.

    >>> layer = Dropout(0.5, DropoutState(seed=42, step=3), "fc1")
    >>> layer(torch.ones(1, 8)).tolist()
    [[2.0, 0.0, 2.0, 2.0, 0.0, 0.0, 2.0, 0.0]]
    """

    state: DropoutState | None

    def __init__(
        self, p: float = 0.5, state: DropoutState | None = None, name: str | None = None
    ) -> None:
        super().__init__()
        masks.threshold(p)
        self.p = p
        self.name = name
        self.attach(state)

    def attach(self, state: DropoutState | None) -> None:
        """Use a state, without making it a submodule: it is saved once, where `bind` puts it."""
        self.__dict__["state"] = state

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return dropout of x, x itself in evaluation mode.

        Raises:
            RuntimeError: no state or no name yet.
            TypeError, ValueError: as `rng.torch.dropout`.
        """
        if not self.training:
            return x
        if self.state is None or self.name is None:
            raise RuntimeError(
                f"this Dropout (p={self.p}) has no {'state' if self.state is None else 'name'}; "
                "expected both. Do: rng.torch.bind(model, rng.torch.DropoutState(seed)), or "
                "Dropout(p, state, name)"
            )
        return masks.dropout(x, self.p, self.state, self.name)

    def extra_repr(self) -> str:
        """Return p and the name."""
        return f"p={self.p}, name={self.name!r}"


def bind(model: torch.nn.Module, state: DropoutState, name: str = "dropout_state") -> DropoutState:
    """Name every Dropout of a model by its path, give it the state, and return the state.

    The state becomes the model's submodule `name`, so that it moves and is saved with it; an earlier state of
    that name is replaced, and moves no mask any more. Layers that have a name keep it, but not their state.

    Raises:
        TypeError: not a module, a DropoutState and a str.
        ValueError: no Dropout of ours in the model, two layers of one name, a name that is empty or has a dot,
            another attribute `name`, or layers of a state that the model holds elsewhere: that would still
            be saved, without effect.

    >>> model = torch.nn.Sequential(torch.nn.Linear(4, 4), Dropout(0.1))
    >>> state = bind(model, DropoutState(seed=7))
    >>> model[1].name, sorted(model.state_dict())
    ('1', ['0.bias', '0.weight', 'dropout_state._extra_state'])
    """
    if not isinstance(model, torch.nn.Module) or not isinstance(state, DropoutState):
        raise TypeError(
            "bind needs a torch module and an rng.torch.DropoutState, got "
            f"{type(model).__name__} and {type(state).__name__}"
        )
    _check_attribute(model, name)
    layers: dict[str, Any] = {}
    for path, module in model.named_modules():
        if isinstance(module, Dropout):
            own = qualified(path) if module.name is None else module.name
            if own in layers:
                raise ValueError(
                    f"two Dropout layers have the name {own!r}, so they would have the same masks"
                )
            layers[own] = module
    if not layers:
        raise ValueError("the model has no rng.torch.Dropout; expected one or more")
    _check_states(model, state, name, layers)
    for own, module in layers.items():
        module.name = own
        module.attach(state)
    setattr(model, name, state)
    return state


def _check_attribute(model: torch.nn.Module, name: str) -> None:
    """Refuse a name that the model cannot give to the state, or has given away."""
    if not isinstance(name, str):
        raise TypeError(f"name must be a str, got {name!r} ({type(name).__name__})")
    if not name or "." in name:
        raise ValueError(
            f"name must be an attribute's name, not empty and without a dot, got {name!r}"
        )
    taken = getattr(model, name, None)
    # What is None may still be reserved: for a parameter or a buffer, or by an attribute of the class,
    # which would hide the state.
    reserved = name in model._parameters or name in model._buffers or hasattr(type(model), name)
    if reserved or not (taken is None or isinstance(taken, DropoutState)):
        raise ValueError(f"the model has an attribute {name!r} already; expected another name=")


def _check_states(
    model: torch.nn.Module, state: DropoutState, name: str, layers: dict[str, Any]
) -> None:
    """Refuse to leave a state behind in the model that no layer listens to any more."""
    for path, module in model.named_modules(remove_duplicate=False):
        if not isinstance(module, DropoutState) or module is state or path == name:
            continue
        for own, layer in layers.items():
            if layer.state is module:
                raise ValueError(
                    f"layer {own!r} has another state, which the model holds as {path!r}; bound to "
                    f"{name!r} it would leave that behind: saved, and moving no mask. Do: bind that state, "
                    f"or delete {path!r} of the model first"
                )
