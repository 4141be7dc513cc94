"""Any object with `__len__` and `__getitem__` is a dataset; these functions ask it what it can tell.

One that has only `__iter__` is one too: its samples come one after the other.

The optional methods are `arrays()`, `fingerprint()`, `describe(i)`, `versions()` and `settings()`.
"""

import inspect
from collections.abc import Mapping
from typing import Any

from pipeline.datasets import common
from pipeline.errors import ConfigError


def check(dataset: Any, *, by_keys: bool = False) -> None:
    """Refuse what is neither a map-style dataset nor one that can be iterated again and again.

    Args:
        dataset: it.
        by_keys: a sampler says what it is asked for.

    Raises:
        ConfigError: a class, a mapping whose keys are not 0, 1, 2, … (unless `by_keys`), text, an iterator, or anything without `__len__` and
            `__getitem__` (or `__iter__` instead); the message says what is missing.
    """
    kind = type(dataset)
    if isinstance(dataset, type):
        _refuse(
            f"the class {dataset.__qualname__} itself", "make an instance of it: call the class"
        )
    if isinstance(dataset, Mapping) and not by_keys and not _numbered(dataset):
        keys = ", ".join(repr(key) for key in list(dataset)[:5])
        _refuse(
            f"a {kind.__name__} with the keys {keys}",
            "pass one of its values, or its keys as sampler: sampler=list(dataset)",
        )
    if isinstance(dataset, str | bytes):
        _refuse(f"{dataset!r}", "for a folder of images use datasets.ImageFolder(root)")
    if only_iterable(dataset):
        if hasattr(kind, "__next__"):
            _refuse(
                f"a {_name(dataset)}, an iterator, which can be read only once",
                "give an object whose __iter__ makes a new iterator for each epoch",
            )
        if isinstance(dataset, set | frozenset):
            _refuse("a set without __getitem__, whose order is arbitrary", "pass a sorted list")
        return
    missing = [name for name in ("__len__", "__getitem__") if not hasattr(kind, name)]
    if missing:
        _refuse(f"a {_name(dataset)} without {' and '.join(missing)}", _NEEDED)
    try:
        len(dataset)
    except Exception as error:
        text = f"a {_name(dataset)} whose len() fails ({type(error).__name__}: {error})"
        _refuse(text, _NEEDED, error)


def _numbered(dataset: Mapping[Any, Any]) -> bool:
    """Return whether a mapping has the first and the last index of a list of its length."""
    return 0 in dataset and len(dataset) - 1 in dataset


def only_iterable(dataset: Any) -> bool:
    """Return whether samples can only be had one after the other."""
    kind = type(dataset)
    if any(base.__name__ == "IterableDataset" for base in kind.__mro__):
        return True
    return hasattr(kind, "__iter__") and not hasattr(kind, "__getitem__")


def reads_together(dataset: Any) -> bool:
    """Return whether a dataset gives the samples of a whole batch at once (`__getitems__`).

    torch's `Subset` has the method whether or not the dataset below it has; if not, it reads them
    one by one, and then so do we: each sample keeps random numbers of its own.
    """
    kind = type(dataset)
    if kind.__name__ == "Subset" and kind.__module__.startswith("torch.utils.data"):
        return reads_together(dataset.dataset)
    return callable(getattr(dataset, "__getitems__", None))


_NEEDED = "a dataset needs __len__() and __getitem__(i) for i in 0 .. len - 1"


def _refuse(got: str, do: str, cause: Exception | None = None) -> None:
    what = f"dataset: expected an object with __len__ and __getitem__, got {got}"
    raise ConfigError(what, do=do, field="dataset") from cause


def _name(dataset: Any) -> str:
    kind = type(dataset)
    return f"{kind.__module__}.{kind.__qualname__}"


def stands_for(dataset: Any, *names: str) -> bool:
    """Return whether methods of the dataset may be used instead of its `__getitem__`.

    They may if they are ours and none of the classes that override `__getitem__` comes after them:
    a subclass that changes what an item is has changed it here too. Names alone say nothing:
    wrappers pass attributes on, and other classes use the same names.
    """
    for name in names:
        for kind in type(dataset).__mro__:
            if name in vars(kind):
                if not kind.__module__.startswith("pipeline.datasets."):
                    return False
                break
            if "__getitem__" in vars(kind):
                return False
        else:
            return False
    return True


def _own(dataset: Any, name: str, *arguments: Any) -> Any:
    """Return what the dataset's own optional method says, or None if it has none that fits."""
    method = getattr(type(dataset), name, None)
    if not callable(method):
        return None
    try:
        inspect.signature(method).bind(dataset, *arguments)
    except (TypeError, ValueError):  # a method of that name for another purpose
        return None
    return method(dataset, *arguments)


def fingerprint(dataset: Any) -> str:
    """Return the dataset's own fingerprint, else a digest of its class name and length.

    The second cannot see that the content changed: give the dataset a `fingerprint()` for that.
    """
    own = _own(dataset, "fingerprint")
    if own is not None:
        return str(own)
    length = str(len(dataset)) if hasattr(type(dataset), "__len__") else "unknown"
    return common.digest([_name(dataset).encode(), length.encode()])


def describe(dataset: Any, i: int) -> str:
    """Return the dataset's own name of sample `i`, else class and index; never raises."""
    try:
        own = _own(dataset, "describe", i)
    except Exception:  # this is called while another error is being told
        own = None
    return f"{type(dataset).__qualname__}[{i}]" if own is None else str(own)


def versions(dataset: Any) -> dict[str, str]:
    """Return the versions of the libraries that can change the dataset's bytes; {} if it has none."""
    own = _own(dataset, "versions")
    return {str(k): str(v) for k, v in own.items()} if isinstance(own, Mapping) else {}


def settings(dataset: Any) -> dict[str, Any]:
    """Return the dataset's own arguments that decide bytes (JSON-able); {} if it tells none.

    They belong into the configuration digest.
    """
    own = _own(dataset, "settings")
    return dict(own) if isinstance(own, Mapping) else {}
