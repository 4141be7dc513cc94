"""output="jax": numpy's batches by DLPack, in memory that nobody overwrites while JAX has it."""

import gc
import itertools

import numpy as np
import pytest

jax = pytest.importorskip("jax")

import pipeline
from pipeline import datasets
from pipeline import transforms as T
from tests.helpers import Images
from tests.integrations.common import Rows, noisy

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:jax")
ARGUMENTS = {"batch_size": 4, "shuffle": True, "seed": 7}
WORKERS = [{}, {"num_workers": 2}, {"num_workers": 2, "worker_method": "thread"}]


def make(n=64, output="jax", **options):
    return pipeline.DataLoader(
        Rows(n), **ARGUMENTS | {"transforms": [noisy], "output": output} | options
    )


@pytest.mark.parametrize("workers", WORKERS, ids=["none", "processes", "threads"])
def test_batches_equal_numpys(workers):
    options = ARGUMENTS | {
        "transforms": [T.RandomCrop(12, padding=2), T.Normalize(preset="cifar10")]
    }
    with (
        pipeline.DataLoader(Images(30), **options) as expected,
        pipeline.DataLoader(Images(30), output="jax", **options, **workers) as loader,
    ):
        for (x, y), (a, b) in itertools.chain(
            zip(loader, expected, strict=True), zip(loader, expected, strict=True)
        ):
            assert isinstance(x, jax.Array)
            assert isinstance(y, jax.Array)
            assert (x.dtype, x.shape) == (a.dtype, a.shape)
            assert np.array_equal(x, a)
            assert np.array_equal(y, b)


DTYPES = ["bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "float16", "float32"]


@pytest.mark.parametrize("dtype", DTYPES)
def test_dtypes_stay(dtype):
    values = (np.arange(24) % 2 if dtype == "bool" else np.arange(24)).astype(dtype).reshape(12, 2)
    data = datasets.ArrayDataset(values, values)
    with pipeline.DataLoader(data, 4, seed=1, output="jax") as loader:
        found = [x for x, y in loader]
    assert {x.dtype for x in found} == {np.dtype(dtype)}
    assert np.array_equal(np.concatenate(found), values)


@pytest.mark.parametrize("dtype", ["int64", "uint64", "float64"])
def test_64_bits_stay_where_jax_is_told_to_keep_them_and_become_32_as_anywhere_in_jax(dtype):
    data = datasets.ArrayDataset(np.arange(12).astype(dtype), np.arange(12).astype(dtype))
    with pipeline.DataLoader(data, 4, seed=1, output="jax") as loader:
        with jax.enable_x64(True):
            found = [x for x, y in loader]
            assert {x.dtype for x in found} == {np.dtype(dtype)}
            assert np.array_equal(np.concatenate(found), np.arange(12))
        found = [x for x, y in loader]
        assert {x.dtype for x in found} == {np.dtype(dtype.replace("64", "32"))}
        assert np.array_equal(np.concatenate(found), np.arange(12))


def test_arrays_share_the_memory_of_the_batch_buffers():
    with make(400, num_workers=2) as loader:
        pointers = set()
        for x, _y in loader:
            pointers.add(x.unsafe_buffer_pointer())
            low = loader.buffers.__array_interface__["data"][0]
            assert low <= x.unsafe_buffer_pointer() < low + loader.buffers.nbytes
        assert len(pointers) < 50  # of 100 batches: buffers are used again


@pytest.mark.parametrize("workers", WORKERS, ids=["none", "processes", "threads"])
def test_what_is_held_is_never_overwritten(workers):
    with make(output="numpy") as loader:
        expected = [x.copy() for x, _ in loader]
    with make(**workers) as loader:
        held = [x for x, _ in loader]
        for _ in range(3):  # in the meantime the buffers go round
            for _ in loader:
                pass
        gc.collect()
        assert all(np.array_equal(x, a) for x, a in zip(held, expected, strict=True))


def test_a_computation_that_still_runs_holds_its_batch():
    @jax.jit
    def slowly(x):
        y = jax.numpy.ones((300, 300)) * x[0, 0]
        return jax.lax.fori_loop(0, 30, lambda _, y: jax.numpy.cos(y @ y / 300), y).sum() * 0 + x

    with make(output="numpy") as loader:
        expected = [x.copy() for x, _ in loader]
    with make(num_workers=2) as loader:
        slowly(np.zeros((4, 8), np.float32)).block_until_ready()
        results = [slowly(x) for x, _ in loader]  # none is waited for
        for _ in loader:
            pass
        assert all(np.allclose(x, a) for x, a in zip(results, expected, strict=True))


def test_a_donated_batch_may_be_written_to_by_jax_but_not_by_us():
    double = jax.jit(lambda x: x * 2, donate_argnums=0)
    with make(output="numpy") as loader:
        expected = [x * 2 for x, _ in loader]
    with make(num_workers=2) as loader:
        results = [double(x) for x, _ in loader]
        for _ in loader:
            pass
        assert all(np.array_equal(x, a) for x, a in zip(results, expected, strict=True))


def test_a_slice_or_a_numpy_view_holds_the_batch_too():
    with make(output="numpy") as loader:
        expected = [x.copy() for x, _ in loader]
    with make(num_workers=2) as loader:
        views = [np.asarray(x)[1:] for x, _ in loader]
        for _ in loader:
            pass
        gc.collect()
        assert all(np.array_equal(v, a[1:]) for v, a in zip(views, expected, strict=True))


def test_a_state_goes_on_with_another_output():
    with make() as loader:
        for _ in itertools.islice(loader, 3):
            pass
        state = loader.state_dict()
    with make(output="numpy") as loader:
        whole = [x.copy() for x, _ in loader]
    with make(num_workers=2) as loader:
        loader.load_state_dict(state)
        rest = [x for x, _ in loader]
        assert all(np.array_equal(x, a) for x, a in zip(rest, whole[3:], strict=True))
