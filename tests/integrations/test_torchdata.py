"""torchdata's StatefulDataLoader: whoever calls its methods finds the same answers in our loader."""

import copy
import itertools
import json

import pytest

pytest.importorskip("torchdata")

from torchdata.stateful_dataloader import StatefulDataLoader

import pipeline.torch
from tests.integrations.common import Rows, names

KINDS = {"torchdata": StatefulDataLoader, "ours": pipeline.torch.DataLoader}
pytestmark = pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")
N, BATCH = 22, 4  # 6 batches


# torchdata's workers are forked, which JAX forbids in a process where another test imported it.
@pytest.fixture(
    params=[("torchdata", 0), ("ours", 0), ("ours", 2)], ids=["torchdata", "ours", "ours-workers"]
)
def make(request):
    """A maker of loaders of either kind; closes ours. In the data set's order: both have the same."""
    made, (kind, workers) = [], request.param

    def of_kind():
        loader = KINDS[kind](Rows(N), batch_size=BATCH, num_workers=workers)
        made.append(loader)
        return loader

    yield of_kind
    for loader in made:
        if hasattr(loader, "close"):
            loader.close()


def ids(batches):
    return [names(batch) for batch in batches]


WHOLE = [list(range(i, min(i + BATCH, N))) for i in range(0, N, BATCH)]


@pytest.mark.parametrize("stop", [0, 1, 3, 5])
def test_a_state_of_the_middle_goes_on_at_the_next_batch_and_then_with_a_whole_epoch(make, stop):
    loader = make()
    batches = iter(loader)
    assert ids(itertools.islice(batches, stop)) == WHOLE[:stop]
    state = copy.deepcopy(loader.state_dict())
    assert ids(batches) == WHOLE[stop:]  # taking a state does not disturb the pass
    other = make()
    other.load_state_dict(state)
    assert ids(other) == WHOLE[stop:]
    assert ids(other) == WHOLE


def test_a_state_taken_before_iterating_is_the_beginning(make):
    loader = make()
    state = copy.deepcopy(loader.state_dict())
    assert ids(loader) == WHOLE
    loader.load_state_dict(state)
    assert ids(loader) == WHOLE


def test_a_state_of_the_end_begins_a_new_epoch(make):
    loader = make()
    assert ids(loader) == WHOLE
    state = copy.deepcopy(loader.state_dict())
    other = make()
    other.load_state_dict(state)
    assert ids(other) == WHOLE
    assert ids(other) == WHOLE


def test_an_empty_state_does_nothing(make):
    loader = make()
    loader.load_state_dict({})
    assert ids(loader) == WHOLE


def test_the_last_of_two_loads_counts(make):
    states, loader = [], make()
    batches = iter(loader)
    for _ in range(3):
        next(batches)
        states.append(copy.deepcopy(loader.state_dict()))
    other = make()
    other.load_state_dict(states[0])
    other.load_state_dict(states[2])
    assert ids(other) == WHOLE[3:]


def test_a_state_can_be_taken_after_a_load_and_in_the_middle_of_a_resumed_pass(make):
    loader = make()
    batches = iter(loader)
    next(batches)
    first = copy.deepcopy(loader.state_dict())
    other = make()
    other.load_state_dict(first)
    batches = iter(other)
    assert ids(itertools.islice(batches, 2)) == WHOLE[1:3]
    second = copy.deepcopy(other.state_dict())
    third = make()
    third.load_state_dict(second)
    assert ids(third) == WHOLE[3:]


def test_a_load_in_the_middle_acts_on_the_next_pass(make):
    loader = make()
    batches = iter(loader)
    next(batches)
    state = copy.deepcopy(loader.state_dict())
    next(batches)
    loader.load_state_dict(state)
    assert ids(loader) == WHOLE[1:]


def test_our_states_are_json_and_do_not_depend_on_the_workers():
    with pipeline.torch.DataLoader(Rows(N), BATCH, num_workers=2, seed=1, shuffle=True) as loader:
        whole = ids(loader)
        loader.set_epoch(0)
        for _ in itertools.islice(loader, 2):
            pass
        state = json.loads(json.dumps(loader.state_dict()))
    other = pipeline.torch.DataLoader(Rows(N), BATCH, seed=1, shuffle=True)
    other.load_state_dict(state)
    assert ids(other) == whole[2:]
