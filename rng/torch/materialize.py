"""Memory and initial values for a whole model: `rng.torch.init.materialize`.

    name of a parameter -> the first rule that fits -> init(tensor, seed=seed, name=name)

The rules at the end are torch's `reset_parameters` of its layers, with values keyed by name.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from difflib import get_close_matches
from fnmatch import fnmatchcase
from functools import partial
from types import UnionType
from typing import Any

import torch
from torch import nn

from rng import address
from rng.torch import init
from rng.torch.layers import qualified

Initialiser = Callable[..., Any]


def materialize(
    model: nn.Module, seed: int, rules: Any = None, device: torch.device | str | None = None
) -> nn.Module:
    """Give every parameter of a model its value by its name: see `rng.torch.init.materialize`."""
    seed = address.check_seed(seed)
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch module, got {type(model).__name__}")
    rules = _checked_kinds({} if rules is None else rules)
    _check_rules(model, rules)
    wanted = list(_tensors(model))
    _check_names([name for name, *_ in wanted])
    chosen = {name: _rule(rules, name, leaf, module) for name, leaf, module, _ in wanted}
    missing = [name for name, rule in chosen.items() if rule is None]
    if missing:
        raise ValueError(
            f"no rule for {', '.join(missing)}; expected one for each parameter, and for each buffer on "
            "the meta device. Do: rules={'pattern of the name': init.normal_, ...}"
        )
    _allocate(model, device)
    for name, leaf, module, _ in wanted:
        tensor = getattr(module, leaf)
        chosen[name](tensor, seed=seed, name=name)  # type: ignore[misc]
        padding = getattr(module, "padding_idx", None)
        if (
            padding is not None
            and leaf == "weight"
            and isinstance(module, nn.Embedding | nn.EmbeddingBag)
        ):
            with torch.no_grad():
                tensor[padding].fill_(0)
    return model


def _tensors(model: nn.Module) -> Iterator[tuple[str, str, nn.Module, torch.Tensor]]:
    """Yield (name, own name, module, tensor): parameters once each, and buffers on the meta device."""
    seen: set[int] = set()
    for path, module in model.named_modules():
        here = [*module._parameters.items()]
        here += [(leaf, b) for leaf, b in module._buffers.items() if b is not None and b.is_meta]
        for leaf, tensor in here:
            if tensor is not None and id(tensor) not in seen:
                seen.add(id(tensor))
                yield qualified(f"{path}.{leaf}" if path else leaf), leaf, module, tensor


def _allocate(model: nn.Module, device: torch.device | str | None) -> None:
    """Give memory to what is on the meta device; tensors that several modules share stay shared."""
    shared: dict[int, list[tuple[nn.Module, str]]] = {}
    for module in model.modules():
        for leaf, tensor in module._parameters.items():
            if tensor is not None:
                shared.setdefault(id(tensor), []).append((module, leaf))
    if not any(t.is_meta for t in (*model.parameters(), *model.buffers())):
        return
    # By way of _apply, which wrappers (FSDP) listen to.
    where = device or "cpu"
    model._apply(lambda t: torch.empty_like(t, device=where) if t.is_meta else t)
    for (module, leaf), *others in shared.values():
        for other, same in others:
            other._parameters[same] = module._parameters[leaf]


def _check_names(names: list[str]) -> None:
    """Refuse two parameters of one name: they would have equal values."""
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise ValueError(
            f"two parameters have the name {', '.join(twice)}, so they would have equal values; expected "
            "names that differ without the parts of wrappers (_orig_mod, module ...)"
        )


def _checked_kinds(rules: Any) -> Mapping[Any, Any]:
    """Return the rules; refuse what is no pattern, type, initialiser or table of them."""
    if not isinstance(rules, Mapping):
        raise TypeError(
            "rules must be a mapping {pattern or module type: initialiser}, got "
            f"{rules!r} ({type(rules).__name__})"
        )
    for pattern, rule in rules.items():
        if isinstance(pattern, str):
            _check_callable(pattern, rule)
            continue
        kinds = pattern if isinstance(pattern, tuple) else (pattern,)
        if not all(isinstance(kind, type | UnionType) for kind in kinds):
            raise TypeError(f"rules: {pattern!r} is neither a pattern (str) nor a module type")
        if not (isinstance(rule, Mapping) or callable(rule)):
            raise TypeError(
                f"rule {pattern!r} must be {{parameter's own name: initialiser}}, or a function from the "
                f"module to that, got {rule!r}"
            )
    return rules


def _check_callable(where: Any, rule: Any) -> None:
    if not callable(rule):
        raise TypeError(
            f"rule {where!r} must be an initialiser, called as f(tensor, seed=, name=), got {rule!r}"
        )


def _table(pattern: Any, rule: Any, module: nn.Module) -> Mapping[str, Any]:
    """Return {parameter's own name: initialiser} that a type's rule has for a module."""
    if isinstance(rule, Mapping):
        return rule
    if getattr(rule, "__module__", None) == init.__name__:
        raise TypeError(
            f"rule {pattern!r} must be {{parameter's own name: initialiser}}, or a function from the "
            f"module to that, got the initialiser {rule.__name__}. Do: {{'weight': {rule.__name__}, ...}}"
        )
    table = rule(module)
    if not isinstance(table, Mapping):
        raise TypeError(
            f"rule {pattern!r}: its function must return {{parameter's own name: initialiser}}, got {table!r}"
        )
    return table


def _check_rules(model: nn.Module, rules: Mapping[Any, Any]) -> None:
    """Refuse a rule that fits nothing: a misspelt one would leave torch's default in force, unseen.

    Parameters that are None (bias=False) and buffers with memory count: the same rules serve a model with
    and without them.
    """
    modules = list(model.named_modules())
    names = [
        qualified(f"{path}.{leaf}" if path else leaf)
        for path, module in modules
        for leaf in (*module._parameters, *module._buffers)
    ]
    for pattern, rule in rules.items():
        if isinstance(pattern, str):
            if not any(fnmatchcase(name, pattern) for name in names):
                raise ValueError(
                    f"rule {pattern!r} fits no parameter of the model{_nearest(pattern, names)}"
                )
            continue
        fits = [module for _, module in modules if isinstance(module, pattern)]
        if not fits:
            kinds = {type(module).__name__ for _, module in modules}
            near = _nearest(getattr(pattern, "__name__", ""), kinds)
            raise ValueError(f"rule {pattern!r} fits no module of the model{near}")
        tables = [_table(pattern, rule, module) for module in fits]
        for table in tables:
            for leaf, one in table.items():
                _check_callable((pattern, leaf), one)
        own = {leaf for module in fits for leaf in (*module._parameters, *module._buffers)}
        for leaf in dict.fromkeys(leaf for table in tables for leaf in table):
            if leaf not in own:
                raise ValueError(
                    f"rule {pattern!r}: {leaf!r} is no parameter of such a module in the model"
                    f"{_nearest(leaf, own)}"
                )


def _nearest(given: str, names: Iterable[str]) -> str:
    near = get_close_matches(str(given), sorted(names), 1, 0.4)
    return f"; nearest: {near[0]!r}" if near else ""


def _rule(rules: Mapping[Any, Any], name: str, leaf: str, module: nn.Module) -> Initialiser | None:
    """Return what initialises a tensor, None if no rule fits."""
    for pattern, rule in (*rules.items(), *_DEFAULTS.items()):
        if isinstance(pattern, str):
            if fnmatchcase(name, pattern):
                found: Initialiser | None = rule
                return found
        elif isinstance(module, pattern):
            table = _table(pattern, rule, module)
            if leaf in table:
                found = table[leaf]
                return found
    return None


# ---------------------------------------------------------------- torch's own
def _linear(module: Any) -> dict[str, Initialiser]:
    """Linear and convolutions: kaiming_uniform(a=sqrt(5)), which is 1 / sqrt(fan_in), as the bias."""
    weight = module.weight
    fan_in = weight.shape[1] * math.prod(weight.shape[2:])
    bound = 1.0 / math.sqrt(fan_in) if fan_in else 0.0
    bias = partial(init.uniform_, a=-bound, b=bound) if bound else init.zeros_
    return {"weight": partial(init.kaiming_uniform_, a=math.sqrt(5.0)), "bias": bias}


def _bilinear(module: Any) -> dict[str, Initialiser]:
    bound = 1.0 / math.sqrt(module.weight.shape[1])
    return dict.fromkeys(("weight", "bias"), partial(init.uniform_, a=-bound, b=bound))


def _recurrent(module: Any) -> dict[str, Initialiser]:
    bound = 1.0 / math.sqrt(module.hidden_size)
    return dict.fromkeys(module._parameters, partial(init.uniform_, a=-bound, b=bound))


_NORM: dict[str, Initialiser] = {
    "weight": init.ones_,
    "bias": init.zeros_,
    "running_mean": init.zeros_,
    "running_var": init.ones_,
    "num_batches_tracked": init.zeros_,
}
_DEFAULTS: dict[Any, Any] = {
    # The output projection of attention has a bias of zeros: a module type of its own in torch.
    nn.modules.linear.NonDynamicallyQuantizableLinear: {"bias": init.zeros_},
    (nn.Linear, nn.modules.conv._ConvNd): _linear,
    nn.Bilinear: _bilinear,
    (nn.Embedding, nn.EmbeddingBag): {"weight": init.normal_},
    (nn.LayerNorm, nn.GroupNorm, nn.RMSNorm, nn.modules.batchnorm._NormBase): _NORM,
    nn.MultiheadAttention: {
        **dict.fromkeys(
            ("in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight"),
            init.xavier_uniform_,
        ),
        "in_proj_bias": init.zeros_,
        "bias_k": init.xavier_normal_,
        "bias_v": init.xavier_normal_,
    },
    (nn.RNNBase, nn.RNNCellBase): _recurrent,
    nn.PReLU: {"weight": partial(init.constant_, val=0.25)},
}
