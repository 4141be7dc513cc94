"""What can go wrong, as a tree.

    SamebatchError
    ├── ConfigError      (ValueError)    a value that cannot be used; names the field
    ├── DatasetError     (ValueError)    a dataset that cannot be read
    ├── SampleError      (RuntimeError)  one sample failed; names its index, path, epoch, position
    ├── StateError       (ValueError)    a saved state that does not fit
    ├── WorkerError      (RuntimeError)  a worker died, hung or could not start
    └── InternalError    (RuntimeError)  our own fault

Every message says what happened with ids and numbers; then, each on a line of its own, where, and
what to do. Errors are picklable and keep their fields in `.fields`.
"""

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
        super().__init__("\n".join(lines))

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
    """One sample failed; the message names its index, path, epoch, position and worker."""


class StateError(SamebatchError, ValueError):
    """A saved state that does not fit this loader; the message compares field by field."""


class WorkerError(SamebatchError, RuntimeError):
    """A worker died, hung or could not start."""


class InternalError(SamebatchError, RuntimeError):
    """A fault of this package, not of its user: please report it."""
