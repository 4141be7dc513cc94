import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import rng
from pipeline import DataLoader, datasets
from pipeline.engine import Pass
from pipeline.errors import ConfigError
from pipeline.plan import TAILS, Coverage, Listed, Plan, Sequential, checked_ids, make_order

sizes = {
    "length": st.integers(0, 200),
    "batch": st.integers(1, 20),
    "world": st.integers(1, 6),
    "tail": st.sampled_from(TAILS),
}


def _ranks(length, batch, world, tail):
    return [Plan(length, batch, world, rank, tail) for rank in range(world)]


def _end(left, length, batch, world, tail):
    """Where a pass over the last `left` positions ends."""
    unit = {"drop": batch * world, "trim": world}.get(tail, 1)
    return length - left % unit


def _global(plans, offset=0):
    """Real positions of all ranks, step by step, in the order of the ranks."""
    found = []
    for step in range(plans[0].steps(offset)):
        for plan in plans:
            positions, real = plan.positions(step, offset)
            found += positions[:real].tolist()
    return found


@given(**sizes)
def test_the_ranks_together_have_each_position_once_and_in_order(length, batch, world, tail):
    end = _end(length, length, batch, world, tail)
    assert _global(_ranks(length, batch, world, tail)) == list(range(end))


@given(**sizes)
def test_every_rank_has_the_same_steps_and_full_batches_but_at_the_end(length, batch, world, tail):
    plans = _ranks(length, batch, world, tail)
    assert len({plan.steps() for plan in plans}) == 1
    for plan in plans:
        sizes = [len(plan.positions(step)[0]) for step in range(plan.steps())]
        assert sizes[:-1] == [batch] * (len(sizes) - 1) if sizes else True
        if tail in ("drop", "pad"):
            assert all(n == batch for n in sizes)
    if plans[0].steps():
        last = [len(plan.positions(plan.steps() - 1)[0]) for plan in plans]
        assert max(last) - min(last) <= (tail == "short")
        assert min(last) > 0 or tail == "short"


@given(**sizes, data=st.data())
def test_a_pass_from_any_offset_has_the_rest(length, batch, world, tail, data):
    offset = data.draw(st.integers(0, length))
    plans = _ranks(length, batch, world, tail)
    left = length - offset
    end = _end(left, length, batch, world, tail)
    assert _global(plans, offset) == list(range(offset, end))
    for plan in plans:
        assert plan.ends_at(offset) == (plan.steps(offset) == 0)


@given(**sizes, data=st.data())
def test_going_on_after_any_step_is_the_same_as_not_having_stopped(
    length, batch, world, tail, data
):
    plans = _ranks(length, batch, world, tail)
    steps = plans[0].steps()
    stop = data.draw(st.integers(0, steps))
    offset = plans[0].offset_after(stop - 1) if stop else 0
    for plan in plans:
        rest = [plan.positions(s, offset)[0].tolist() for s in range(plan.steps(offset))]
        assert rest == [plan.positions(s)[0].tolist() for s in range(stop, steps)]


@given(**sizes)
def test_all_positions_are_those_of_the_steps_without_padding(length, batch, world, tail):
    for plan in _ranks(length, batch, world, tail):
        parts = [plan.positions(s) for s in range(plan.steps())]
        expected = [q for positions, real in parts for q in positions[:real].tolist()]
        assert plan.all_positions(0).tolist() == expected


@given(**sizes, most=st.integers(1, 9), data=st.data())
def test_full_batches_looked_up_together_are_those_of_the_steps(
    length, batch, world, tail, most, data
):
    rank = data.draw(st.integers(0, world - 1))
    offset = data.draw(st.integers(0, length))
    plan = Plan(length, batch, world, rank, tail)
    for step in range(plan.steps(offset)):
        together = plan.full_batches(step, most, offset)
        full = (length - offset) // plan.global_batch - step
        assert together.dtype == np.uint64
        assert together.shape == (max(0, min(most, full)), batch)
        for k, row in enumerate(together):
            positions, real = plan.positions(step + k, offset)
            assert (row == positions).all()
            assert real == batch


def test_a_pass_gives_the_same_work_in_any_order_of_asking():
    order = make_order("fisher_yates", 203, 5, 3)
    one = Pass(3, 3, 7, Plan(203, 4, 3, 1), order, "train", 5)
    want = [one._work(step) for step in range(one.steps)]
    for steps in (range(one.steps), reversed(range(one.steps)), [0, 5, 5, 1, 16, 15, 2]):
        for step in steps:
            ids, positions, real = one.work(step)
            assert ids.tolist() == want[step][0].tolist()
            assert positions.tolist() == want[step][1].tolist()
            assert (positions.dtype, ids.dtype, real) == (np.uint64, np.int64, want[step][2])


def test_padding_repeats_the_start_of_the_order():
    plan = Plan(5, 4, 2, 1, "pad")
    positions, real = plan.positions(0)
    assert positions.tolist() == [4, 0, 1, 2]
    assert real == 1


@given(**sizes | {"tail": st.just("even")})
def test_an_even_tail_repeats_fewer_samples_than_there_are_ranks(length, batch, world, tail):
    plans = _ranks(length, batch, world, tail)
    for step in range(plans[0].steps()):
        found = [plan.positions(step) for plan in plans]
        assert sum(len(positions) - real for positions, real in found) < world


def test_a_step_that_is_not_there_is_an_index_error():
    plan = Plan(10, 4)
    for step in (-1, 3):
        with pytest.raises(IndexError, match=rf"step {step} is not in \[0, 3\)"):
            plan.positions(step)


def test_positions_beyond_32_bits_are_exact():
    plan = Plan(1 << 39, 1 << 20)
    positions, _ = plan.positions(plan.steps() - 1)
    assert int(positions[-1]) == (1 << 39) - 1


# ---------------------------------------------------------------- orders
@pytest.mark.parametrize("kind", ["sequential", "fisher_yates", "random_access"])
@pytest.mark.parametrize("n", [0, 1, 2, 3, 100])
def test_every_order_is_a_permutation(kind, n):
    if kind == "random_access" and n < 1 << 16:
        pytest.skip("random access is for big sets")
    order = make_order(kind, n, 5, 0)
    assert sorted(order.ids(np.arange(n, dtype=np.uint64)).tolist()) == list(range(n))


def test_random_access_is_a_permutation_of_a_big_set():
    n = 70_000
    order = make_order("random_access", n, 5, 0)
    ids = order.ids(np.arange(n, dtype=np.uint64))
    assert ids.dtype == np.int64
    assert np.array_equal(np.sort(ids), np.arange(n))
    assert order.ids(np.array([60_000], np.uint64))[0] == ids[60_000]


def test_another_phase_or_key_is_another_order():
    def ids(key, phase):
        return make_order("fisher_yates", 50, key, phase).ids(np.arange(50, dtype=np.uint64))

    assert np.array_equal(ids(1, 0), ids(1, 0))
    assert not np.array_equal(ids(1, 0), ids(1, 2))
    assert not np.array_equal(ids(1, 0), ids(2, 0))


def test_too_many_positions_are_refused():
    with pytest.raises(ConfigError, match=r"2\*\*40"):
        make_order("sequential", (1 << 40) + 1, 0, 0)


def test_sequential_and_listed_orders_take_any_positions():
    positions = np.array([3, 0], np.uint64)
    assert Sequential().ids(positions).tolist() == [3, 0]
    assert Listed(np.array([9, 8, 7, 6])).ids(positions).tolist() == [6, 9]
    assert checked_ids([-1, np.int32(2)], 4).tolist() == [3, 2]


# ---------------------------------------------------------------- coverage
@given(
    st.integers(1, 60).flatmap(lambda n: st.tuples(st.just(n), st.permutations(range(n)))),
    st.data(),
)
def test_coverage_knows_what_was_delivered_in_any_order(made, data):
    n, order = made
    coverage, done = Coverage(), set()
    while order:
        k = data.draw(st.integers(1, len(order)))
        places, order = order[:k], order[k:]
        coverage.add(np.array(places))
        done |= set(places)
        missing = sorted(set(range(n)) - done)
        assert coverage.missing(n).tolist() == missing
        assert coverage.prefix == (missing[0] if missing else n)
        covered = [p for lo, hi in coverage.ahead for p in range(lo, hi)]
        assert sorted(done) == [*range(coverage.prefix), *covered]
        ends = [e for pair in coverage.ahead for e in pair]
        assert ends == sorted(set(ends))  # disjoint, in order, none touching another
        again = Coverage(coverage.prefix, coverage.ahead)
        assert again.missing(n).tolist() == missing


def test_coverage_of_nothing_and_of_what_was_there_already():
    coverage = Coverage()
    coverage.add(np.array([], np.int64))
    assert (coverage.prefix, coverage.ahead) == (0, [])
    coverage.add(np.array([3, 4]))
    coverage.add(np.array([4, 3]))
    assert coverage.ahead == [(3, 5)]
    assert Coverage(0, [(0, 2)]).missing(3).tolist() == [2]


@pytest.mark.parametrize("order", ["fisher_yates", "random_access"])
def test_each_split_has_an_order_of_its_own(order: str) -> None:
    n = 1 << 17
    data = datasets.ArrayDataset(np.arange(n))
    orders = {
        split: DataLoader(data, n, shuffle=True, seed=5, split=split, order=order).batch_at(0, 0)
        for split in ("train", "val", "test", "other")
    }
    for a, b in itertools.combinations(orders, 2):
        assert np.mean(orders[a] == orders[b]) < 1e-3, (a, b)
    if order == "random_access":
        wanted = rng.RandomAccessPermutation(n, 5, 0)[:]
        np.testing.assert_array_equal(orders["train"], wanted)
