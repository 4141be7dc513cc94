"""Batches on a device: copied on a stream of their own while the step before still computes.

    host buffer ──copy stream──▶ device tensors ──event──▶ the consumer's stream
         └── held until its copy's event has happened, then it returns to the ring

    delivered to the user  ≤  copied to the device  ≤  taken from the loader  ≤  delivered + ahead + 1

At most `ahead` batches (1: two buffers take turns) are on the device beyond the one that the user
has. A batch that he keeps is never overwritten: device memory comes from torch's caching allocator
and is used again only when both streams are through with it (`record_stream`). So that it does not
pile up, the host runs at most two steps ahead of the device. States count what was delivered. The
host buffers are registered with CUDA once (`pin`), not copied into other pinned memory. Without
CUDA, batches are torch tensors that share the host's memory.
"""

import copy
import dataclasses
import os
import sys
import threading
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from pipeline.errors import ConfigError
from pipeline.transfer.arena import Arena

_PORTABLE = 1  # cudaHostRegisterPortable: pinned for every device
_STEPS = 2  # of the user that the host may be ahead of the device


# ---------------------------------------------------------------- what a device has to offer
class Backend(Protocol):
    """Copies in order on a stream of its own, and events that say how far it is."""

    def copy(self, tensor: Any) -> Any:
        """Return a copy of a host tensor on the device, whose bytes are there after `mark`."""

    def mark(self) -> Any:
        """Return an event that happens when all copies so far are done."""

    def hand_over(self, event: Any, tensors: list[Any]) -> None:
        """Let the consumer's stream wait for an event; it uses these tensors from now on."""

    def used(self) -> Any:
        """Return an event that happens when the consumer's stream has done all its work so far."""

    def happened(self, event: Any) -> bool:
        """Return whether an event has happened, without waiting."""

    def finish(self, event: Any) -> None:
        """Wait until an event has happened."""

    def register(self, address: int, nbytes: int) -> str:
        """Pin host memory; return "" or why that is not possible."""

    def unregister(self, address: int) -> None:
        """Undo `register`."""


class Cuda:
    """CUDA, or ROCm under torch's name for it."""

    def __init__(self, device: Any) -> None:
        import torch

        self._torch = torch
        self.device = device
        self._stream = torch.cuda.Stream(device)

    def copy(self, tensor: Any) -> Any:
        """Return a copy on the device, allocated on the copy stream and made there."""
        with self._torch.cuda.stream(self._stream):
            return tensor.to(self.device, non_blocking=True)

    def mark(self) -> Any:
        """Return an event after all copies so far."""
        return self._event(self._stream)

    def _event(self, stream: Any) -> Any:
        # Blocking: a host thread that waits sleeps, and leaves its processor to the workers.
        event = self._torch.cuda.Event(blocking=True)
        event.record(stream)
        return event

    def used(self) -> Any:
        """Return an event after what the current stream was given so far."""
        return self._event(self._torch.cuda.current_stream(self.device))

    def hand_over(self, event: Any, tensors: list[Any]) -> None:
        """Let the current stream wait; the memory is not given out again before it is through."""
        stream = self._torch.cuda.current_stream(self.device)
        stream.wait_event(event)
        for tensor in tensors:
            tensor.record_stream(stream)

    def happened(self, event: Any) -> bool:
        """Return whether an event has happened."""
        return bool(event.query())

    def finish(self, event: Any) -> None:
        """Wait on the host."""
        event.synchronize()

    def register(self, address: int, nbytes: int) -> str:
        """Pin host memory; return "" or the runtime's message."""
        runtime = self._torch.cuda.cudart()
        status = runtime.cudaHostRegister(address, nbytes, _PORTABLE)
        if int(status) == 0:
            return ""
        # The runtime keeps its last error, and the next kernel would be blamed for it.
        with suppress(RuntimeError):
            self._torch.zeros(1, device=self.device)
        return str(runtime.cudaGetErrorString(status))

    def unregister(self, address: int) -> None:
        """Undo `register`."""
        self._torch.cuda.cudart().cudaHostUnregister(address)


# ---------------------------------------------------------------- pinning
class Pinned:
    """Host memory that is registered with the device until `close`, or until this object is gone.

    It holds the memory, so that no address is ever given back while it is registered: new memory at
    the same address would be taken for the old, and other bytes copied.

    Attributes:
        memory: uint8[n], what is pinned; empty after `close`.
        problem: "" or why it is not pinned; copies then work, but wait for the host.
    """

    def __init__(self, memory: np.ndarray, backend: Backend) -> None:
        self.memory = memory
        self.problem = backend.register(memory.ctypes.data, memory.nbytes)
        self._finalizer: Callable[[], Any] = lambda: None
        if not self.problem:
            # The finalizer keeps the memory too: it must outlive the registration.
            self._finalizer = weakref.finalize(self, _unregister, backend, memory, os.getpid())

    def close(self) -> None:
        """Unregister. Safe to call twice; no copy from the memory may be running."""
        self._finalizer()
        self._finalizer = lambda: None
        self.memory = np.empty(0, np.uint8)


def _unregister(backend: Backend, memory: np.ndarray, pid: int) -> None:
    if os.getpid() == pid:  # a forked child has no registration, and no use of its parent's device
        backend.unregister(memory.ctypes.data)


def pin(memory: Arena | np.ndarray, backend: Backend | None = None) -> Pinned:
    """Register an arena, or the memory of a contiguous array, with CUDA: once, without a copy.

    Arrays and tensors that view it are pinned from then on (`tensor.is_pinned()`). Where the system
    refuses, a warning says so and the result has a `problem`.

    Args:
        memory: an arena, or a C-ordered array, of at least one byte.
        backend: instead of CUDA's on the current device.

    Raises:
        ConfigError: no CUDA, an empty memory, or an array that is not contiguous.
    """
    if backend is None:
        import torch

        if not torch.cuda.is_available():
            raise ConfigError("pin needs a CUDA device", do="leave pinning off on this machine")
        backend = Cuda(torch.device("cuda", torch.cuda.current_device()))
    whole = np.frombuffer(memory.memory, np.uint8) if isinstance(memory, Arena) else memory
    if not whole.flags.c_contiguous or not whole.nbytes:
        raise ConfigError(
            f"only contiguous memory can be pinned, got {whole.dtype}{list(whole.shape)} with "
            f"strides {whole.strides}"
        )
    pinned = Pinned(whole.reshape(-1).view(np.uint8), backend)
    if pinned.problem:
        warnings.warn(
            f"{whole.nbytes:,} bytes of batch buffers could not be pinned ({pinned.problem}): "
            f"copies to the device will not overlap with the host's work; raise the limit of locked "
            f"memory (ulimit -l) or lower batch_size",
            RuntimeWarning,
            stacklevel=2,
        )
    return pinned


# ---------------------------------------------------------------- batches as trees
def map_tensors(batch: Any, change: Callable[[Any], Any]) -> Any:
    """Return the containers of a batch around its tensors, each replaced by `change(tensor)`.

    numpy arrays count as tensors where torch has their dtype (they share their memory). What is no
    tensor, and every container without one, is passed on as it is, the very same object.
    """
    import torch

    return _mapped(batch, change, torch)


def _mapped(node: Any, change: Callable[[Any], Any], torch: Any) -> Any:
    if isinstance(node, torch.Tensor):
        return change(node)
    if isinstance(node, np.ndarray):
        tensor = _tensor(node, torch)
        return node if tensor is None else change(tensor)
    if isinstance(node, Mapping):
        values = {key: _mapped(value, change, torch) for key, value in node.items()}
        if all(values[key] is value for key, value in node.items()):
            return node
        if type(node) is dict or not hasattr(node, "update"):
            return values
        made: Any = copy.copy(node)  # of the user's kind, which may need more than its items
        made.update(values)
        return made
    if isinstance(node, list | tuple):
        items = [_mapped(value, change, torch) for value in node]
        if all(a is b for a, b in zip(items, node, strict=True)):
            return node
        if hasattr(node, "_fields"):
            make: Callable[[list[Any]], Any] = type(node)._make  # type: ignore[union-attr]
            return make(items)
        return items if isinstance(node, list) else tuple(items)
    return _of_dataclass(node, change, torch)


def _of_dataclass(node: Any, change: Callable[[Any], Any], torch: Any) -> Any:
    if not dataclasses.is_dataclass(node) or isinstance(node, type):
        return node
    values = {
        one.name: _mapped(getattr(node, one.name), change, torch)
        for one in dataclasses.fields(node)
        if one.init
    }
    if all(getattr(node, name) is value for name, value in values.items()):
        return node
    return dataclasses.replace(node, **values)


def _tensor(array: np.ndarray, torch: Any) -> Any:
    """Return a tensor that shares an array's memory, or None where torch has not its dtype."""
    if not array.flags.writeable or any(stride < 0 for stride in array.strides):
        array = array.copy()  # torch has no read-only tensors, and no negative strides
    try:
        return torch.from_numpy(array)
    except TypeError:
        return None


# ---------------------------------------------------------------- the loader
@dataclass
class _Ready:
    """A batch that is on its way to the device and not delivered.

    `before` is the loader's state before it was taken, `last` what the loader said of it.
    """

    batch: Any
    event: Any
    tensors: list[Any]
    host: Any
    before: Any
    last: Any


class DeviceLoader:
    """A loader whose batches are tensors on a device; made by `to_device`.

    Whatever this class does not define is the loader's own (`dataset`, `seed`, `batch_size`, …).

    Attributes:
        loader: the loader.
        device: a torch.device.
        ahead: batches copied beyond the delivered one.
    """

    def __init__(self, loader: Any, device: Any, ahead: int, backend: Backend | None) -> None:
        self.loader = loader
        self.device = device
        self.ahead = ahead
        self._backend = backend
        self._pinned: Pinned | None = None
        self._memory: Any = None  # what `_pinned` is of
        self._current: weakref.ref[_DeviceIterator] | None = None
        self._left: Any = None  # the state where a pass was left with batches not delivered
        self._last: Any = None

    def __iter__(self) -> Iterator[Any]:
        """Return an iterator of one pass. Nothing starts before its first `next`."""
        if self._backend is None:
            return _plain(self.loader, self.device)
        return _DeviceIterator(self, self._backend)

    def __len__(self) -> int:
        return len(self.loader)

    def __getattr__(self, name: str) -> Any:
        if name == "loader":  # not constructed yet: nothing to ask
            raise AttributeError(name)
        return getattr(self.loader, name)

    # ------------------------------------------------------------ what was delivered
    def _iterator(self) -> "_DeviceIterator | None":
        return self._current() if self._current is not None else None

    def state_dict(self) -> Any:
        """Return the loader's state after the last batch that was delivered to the user."""
        one = self._iterator()
        if one is not None and one.ready:
            return one.ready[0].before
        return self.loader.state_dict() if self._left is None else self._left

    def load_state_dict(self, state: Any, **options: Any) -> None:
        """Continue where a state was taken; what is on the device beyond it is dropped.

        Raises:
            StateError: as the loader. Nothing has changed.
        """
        self.loader.load_state_dict(state, **options)
        if not state:
            return
        one = self._iterator()
        if one is not None:
            one.restart()
        self._left = None

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next pass, as the loader's `set_epoch`."""
        self.loader.set_epoch(epoch)
        self._left = None

    @property
    def epoch(self) -> int:
        """The epoch of the pass that runs, or that the next one will be."""
        one = self._iterator()
        found: int = one.epoch if one is not None and one.runs else self.loader.epoch
        return found

    @property
    def last(self) -> Any:
        """What the last delivered batch holds (see `pipeline.BatchInfo`)."""
        return self.loader.last if self._backend is None else self._last

    def batch_at(self, epoch: int, step: int) -> Any:
        """Return one batch of any epoch on the device, without iterating. Errors: the loader's."""
        return _moved(self.loader.batch_at(epoch, step), self.device)

    # ------------------------------------------------------------ pinning and ending
    def _pin(self) -> None:
        """Pin the buffers of the loader's engine, which may be another one in each pass."""
        memory = getattr(self.loader, "buffers", None)
        if memory is self._memory:
            return
        self._unpin()
        self._memory = memory
        if memory is not None and not _is_pinned(memory):
            self._pinned = pin(memory, self._backend)

    def _unpin(self) -> None:
        pinned, self._pinned, self._memory = self._pinned, None, None
        if pinned is not None:
            assert self._backend is not None
            self._backend.finish(self._backend.mark())  # no copy reads what is unregistered
            pinned.close()

    def close(self) -> None:
        """Wait for copies, unpin, and close the loader. Batches that were delivered stay valid."""
        one = self._iterator()
        if one is not None:
            one.close()
        self._unpin()
        if hasattr(self.loader, "close"):
            self.loader.close()

    def __enter__(self) -> "DeviceLoader":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _is_pinned(memory: np.ndarray) -> bool:
    """Return whether somebody else pinned this memory (`pin_memory=True`): it is theirs to undo."""
    import torch

    return bool(torch.from_numpy(memory).is_pinned())


def _moved(batch: Any, device: Any) -> Any:
    return map_tensors(batch, lambda tensor: tensor.to(device))


def _plain(loader: Any, device: Any) -> Iterator[Any]:
    for batch in loader:
        yield _moved(batch, device)


class _DeviceIterator:
    """One pass of a `DeviceLoader`."""

    def __init__(self, owner: DeviceLoader, backend: Backend) -> None:
        self._owner = owner
        self._backend = backend
        self._lock = threading.RLock()  # several threads may share an iterator
        self._batches: Iterator[Any] | None = None
        self._ended: Exception | None = None  # how the loader's pass ended; told after `ready`
        self._over = False
        self._delivered = 0
        self._copying: deque[tuple[Any, Any]] = deque()  # (event, host batch) of delivered ones
        self._steps: deque[Any] = deque()  # events after the user's last steps
        self.ready: deque[_Ready] = deque()
        self.epoch = 0

    def __iter__(self) -> "_DeviceIterator":
        return self

    def __len__(self) -> int:
        return len(self._owner)

    def __next__(self) -> Any:
        with self._lock:
            return self._next()

    def _next(self) -> Any:
        if self._over:
            raise StopIteration
        if self._batches is None:
            self._begin()
        self._keep_pace()
        try:
            while self._ended is None and len(self.ready) <= self._owner.ahead:
                self._take()
            if self.ready:
                self._backend.hand_over(self.ready[0].event, self.ready[0].tensors)
        except BaseException:  # Ctrl-C, or no memory on the device
            self._put_back()
            self._over = True
            raise
        if not self.ready:
            ended = self._ended
            self.close()
            assert ended is not None
            raise ended
        one = self.ready.popleft()
        self._copying.append((one.event, one.host))
        self._delivered += 1
        self._owner._last = one.last
        return one.batch

    def _begin(self) -> None:
        owner = self._owner
        earlier = owner._iterator()
        if earlier is not None:
            earlier.drop()
        owner._current = weakref.ref(self)
        self._batches = iter(owner.loader)

    def _keep_pace(self) -> None:
        """Let host buffers go whose copies are done; wait if the host is two steps ahead."""
        while self._copying and self._backend.happened(self._copying[0][0]):
            self._copying.popleft()
        if self._delivered:
            self._steps.append(self._backend.used())
        if len(self._steps) > _STEPS:
            self._backend.finish(self._steps.popleft())

    def _take(self) -> None:
        """Take the loader's next batch and start its copies; or remember how the pass ended."""
        owner, loader = self._owner, self._owner.loader
        assert self._batches is not None
        first = not self._delivered and not self.ready
        # Where a pass was left, the state is not the loader's own.
        before = None
        if hasattr(loader, "state_dict"):
            before = owner.state_dict() if first else loader.state_dict()
        owner._left = None
        try:
            host = next(self._batches)
        except Exception as e:  # StopIteration too
            self._ended = e
            return
        if first:
            self.epoch = getattr(loader, "epoch", 0)
        one = _Ready(None, None, [], host, before, getattr(loader, "last", None))
        self.ready.append(one)  # before anything can fail: `_put_back` knows of it
        owner._pin()

        def copy(tensor: Any) -> Any:
            copied = self._backend.copy(tensor)
            one.tensors.append(copied)
            return copied

        try:
            one.batch = map_tensors(host, copy)
        finally:
            one.event = self._backend.mark()

    # ------------------------------------------------------------ ending
    def drop(self) -> None:
        """Forget what is not delivered, when its copies are over; note where the pass was left.

        The next pass is the next epoch then, as with the loader alone.
        """
        left = self.ready[0].before if self.ready else None
        self._settle()
        if left is not None:
            self._owner._left = left

    def _put_back(self) -> None:
        """Put the loader back to before the first batch that is not delivered: it is due next."""
        left = self.ready[0].before if self.ready else None
        self._settle()
        if left is not None:
            self._owner.loader.load_state_dict(left)

    def _settle(self) -> None:
        """Wait for all copies, and let host and device memory go."""
        for event in [e for e, _ in self._copying] + [one.event for one in self.ready]:
            if event is not None:
                self._backend.finish(event)
        self._copying.clear()
        self._steps.clear()
        self.ready.clear()

    @property
    def runs(self) -> bool:
        """Whether the pass began and is not over for the user."""
        return self._batches is not None and not self._over

    def restart(self) -> None:
        """Go on from a state that the loader was given."""
        with self._lock:
            self._settle()
            self.epoch = getattr(self._owner.loader, "epoch", 0)
            if self._ended is not None:
                self._ended, self._batches = None, iter(self._owner.loader)

    def close(self) -> None:
        """End the pass."""
        with self._lock:
            self.drop()
            self._over = True

    def __del__(self) -> None:
        # At the interpreter's end the device's runtime may be gone already.
        if not sys.is_finalizing() and (self.ready or self._copying):
            self.drop()


def to_device(
    loader: Any, device: Any = None, *, ahead: int = 1, backend: Backend | None = None
) -> DeviceLoader:
    """Return a loader that delivers the batches of another one as tensors on a device.

        for images, labels in pipeline.to_device(loader, "cuda"): ...

    Copies run on a stream of their own while the steps before still compute; the loader's buffers
    are registered with CUDA once, and are used again only after their copies. Bytes, order, epochs
    and states are the loader's; states count batches delivered to the user.

    Args:
        loader: a `pipeline.DataLoader`, or any iterable of batches, with `state_dict` or without.
            Batches may be containers in containers (dict, list, tuple, named tuple, dataclass);
            what is no array or tensor is passed on untouched.
        device: of torch; None is the current CUDA device, or the CPU without one. "cuda" on a
            machine without CUDA warns and gives CPU tensors that share the loader's memory. Devices
            of other kinds get plain copies.
        ahead: batches on the device beyond the one in use, >= 0; 0 copies when it is asked for.
        backend: what copies; for tests.

    Raises:
        ConfigError: torch is missing, a loader that has no batches, a device that torch does not know, or an
            `ahead` that is no count.
    """
    try:
        import torch
    except ImportError as e:
        raise ConfigError(
            "to_device needs torch, which is not installed", do="pip install 'samebatch[torch]'"
        ) from e
    if not isinstance(loader, Iterable):
        raise ConfigError(
            f"loader must be a loader or another iterable of batches, got {loader!r}",
            field="loader",
        )
    if not isinstance(ahead, int) or isinstance(ahead, bool) or ahead < 0:
        raise ConfigError(f"ahead must be an int >= 0, got {ahead!r}", field="ahead")
    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        chosen = torch.device(device)
    except (RuntimeError, TypeError) as e:
        raise ConfigError(f"device={device!r} is no device of torch: {e}", field="device") from e
    if backend is None and chosen.type == "cuda":
        if torch.cuda.is_available():
            if chosen.index is None:
                chosen = torch.device("cuda", torch.cuda.current_device())
            backend = Cuda(chosen)
        else:
            warnings.warn(
                f"device={device!r}: this torch ({torch.__version__}) finds no CUDA device; batches "
                f"stay on the CPU",
                RuntimeWarning,
                stacklevel=2,
            )
            chosen = torch.device("cpu")
    return DeviceLoader(loader, chosen, ahead, backend)
