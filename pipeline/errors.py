"""What can go wrong, as a tree.

    SamebatchError
    ├── ConfigError      (ValueError)    a value that cannot be used; names the field
    ├── DatasetError     (ValueError)    a dataset that cannot be read
    ├── SampleError      (RuntimeError)  one sample failed; names its index, path, epoch, position
    ├── StateError       (ValueError)    a saved state that does not fit
    ├── AuditError       (ValueError)    an audit log that cannot be read or compared
    ├── WorkerError      (RuntimeError)  a worker died, hung or could not start
    └── InternalError    (RuntimeError)  our own fault

Every message says what happened with ids and numbers; then, each on a line of its own, where, and
what to do. Errors are picklable and keep their fields in `.fields`.
"""

import functools
from typing import Any


class SamebatchError(Exception):
    """The root of every error of this package."""

    def __init__(self, what: str, *, where: str = "", do: str = "", **fields: Any) -> None:
        self.what = what
        self.where = where
        self.do = do
        self.fields = fields
        lines = [what]
        if where:
            lines.append(f"  where: {where}")
        if do:
            lines.append(f"  do: {do}")
        self._text = "\n".join(lines)
        super().__init__(self._text)

    def __str__(self) -> str:
        return self._text

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.what, self.where, self.do, self.fields)


def _rebuild(
    kind: type[SamebatchError], what: str, where: str, do: str, fields: dict[str, Any]
) -> SamebatchError:
    return kind(what, where=where, do=do, **fields)


class ConfigError(SamebatchError, ValueError):
    """A value that cannot be used; the message names the field and what it may be."""


class DatasetError(SamebatchError, ValueError):
    """A dataset that cannot be read: missing, damaged or of another format."""


class SampleError(SamebatchError, RuntimeError):
    """One sample failed; the message names its index, path, epoch, position and worker.

    It is also of the type that was raised, where that is known here: `except KeyError` works.
    """

    @classmethod
    def like(cls, kind: type[BaseException] | None, what: str, **facts: Any) -> "SampleError":
        """Return a SampleError that is also of another type of exception, if there can be one.

        Args:
            kind: of what was raised.
            what: message.
            facts: `where`, `do` and fields.
        """
        both = _both(kind) if kind is not None else None  # type: ignore[arg-type]
        if both is not None:
            try:
                return both(what, **facts)
            except Exception:  # its constructor does not allow it
                return cls(what, **facts)
        return cls(what, **facts)

    def __reduce__(self) -> tuple[Any, ...]:
        kind = getattr(type(self), "_kind", None)
        return _rebuild_like, (kind, self.what, self.where, self.do, self.fields)


@functools.cache
def _both(kind: Any) -> type[SampleError] | None:
    no = (SamebatchError, StopIteration, StopAsyncIteration)  # those would end a loop silently
    if not issubclass(kind, Exception) or issubclass(kind, no) or issubclass(SampleError, kind):
        return None
    try:
        return type("SampleError", (SampleError, kind), {"_kind": kind, "__module__": __name__})
    except TypeError:  # two layouts that do not go together
        return None


def _rebuild_like(
    kind: type[BaseException] | None, what: str, where: str, do: str, fields: dict[str, Any]
) -> SampleError:
    return SampleError.like(kind, what, where=where, do=do, **fields)


class StateError(SamebatchError, ValueError):
    """A saved state that does not fit this loader; the message compares field by field."""


class AuditError(SamebatchError, ValueError):
    """An audit log that cannot be read, or two that cannot be compared."""


class WorkerError(SamebatchError, RuntimeError):
    """A worker died, hung or could not start."""


class InternalError(SamebatchError, RuntimeError):
    """A fault of this package, not of its user: please report it."""
