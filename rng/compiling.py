"""Says so when kernels are compiled: once on a machine, then they are read from a cache on disk.

numba keeps the cache beside the source, or in the user's cache folder where that cannot be written.
"""

import logging
from typing import Any

from numba.core import event

_log = logging.getLogger("samebatch")
_OURS = ("rng.", "pipeline.")


class _Announcer(event.Listener):
    """Hears of each compilation in this process; speaks at the first of ours."""

    def __init__(self) -> None:
        self.said = False

    def on_start(self, event: Any) -> None:
        """Say it once."""
        if self.said:
            return
        function = getattr(event.data.get("dispatcher"), "py_func", None)
        if getattr(function, "__module__", "").startswith(_OURS):
            self.said = True
            _log.warning(
                "samebatch: compiling kernels for this machine; once, about 10 s, then cached on disk"
            )

    def on_end(self, event: Any) -> None:
        """Nothing to say."""


announcer = _Announcer()


def announce() -> None:
    """Register with numba."""
    event.register("numba:compile", announcer)  # type: ignore[no-untyped-call]
