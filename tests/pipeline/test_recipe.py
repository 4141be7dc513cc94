import collections
import dataclasses
import typing

import numpy as np
import pytest

from pipeline import datasets
from pipeline import transforms as T
from pipeline.errors import ConfigError, SampleError
from pipeline.recipe import Recipe, SampleFailure
from tests.helpers import OPS, Images, image, images

KEY, LANES, N = 12345, 16, 20


def _filled(recipe, ids, positions, phase=2, slots=None):
    ids, positions = np.array(ids), np.array(positions, np.uint64)
    if recipe.fields is None:
        recipe.probe(int(ids[0]), int(positions[0]), phase)
    arrays = [np.zeros((slots or len(ids), *f.shape), f.dtype) for f in recipe.fields]
    recipe.fill(arrays, 0, ids, positions, phase)
    return arrays


def _recipe(dataset, *transforms):
    return Recipe(dataset, transforms, KEY, LANES)


def test_in_bulk_and_one_by_one_give_the_same_bytes():
    bulk = _recipe(datasets.ArrayDataset(images(N), np.arange(N) % 7), *OPS)
    single = _recipe(Images(N), *OPS)
    assert bulk.bulk
    assert not single.bulk
    ids, positions = [3, 1, 4, 1, 5], [9, 2, 6, 53, 58]
    for a, b in zip(_filled(bulk, ids, positions), _filled(single, ids, positions), strict=True):
        assert a.dtype == b.dtype
        assert np.array_equal(a, b)


@pytest.mark.parametrize("kind", ["bulk", "single"])
def test_a_sample_does_not_depend_on_what_it_is_made_with(kind):
    dataset = datasets.ArrayDataset(images(N), np.arange(N) % 7) if kind == "bulk" else Images(N)
    recipe = _recipe(dataset, *OPS)
    together = _filled(recipe, range(N), range(100, 100 + N))
    for i in range(N):
        alone = _filled(recipe, [i], [100 + i])
        x, y = recipe.sample(i, 100 + i, 2)
        assert np.array_equal(alone[0][0], together[0][i])
        assert np.array_equal(x, together[0][i])
        assert y == together[1][i]


def test_only_the_asked_slots_are_written():
    recipe = _recipe(datasets.ArrayDataset(images(N), np.arange(N)), *OPS)
    arrays = [np.full((6, *f.shape), 77, f.dtype) for f in recipe.fields]
    recipe.fill(arrays, 2, np.array([0, 1]), np.array([0, 1], np.uint64), 0)
    for array in arrays:
        assert (array[[0, 1, 4, 5]] == 77).all()


def test_samples_may_be_dicts_named_tuples_dataclasses_or_bare_images():
    class Named(typing.NamedTuple):
        picture: np.ndarray
        label: int

    kinds = {
        "tuple": lambda x, y: (x, y),
        "list": lambda x, y: [x, y],
        "named": Named,
        "dict": lambda x, y: {"label": y, "image": x},
        "ordered": lambda x, y: collections.OrderedDict(pixel_values=x, y=y),
        "default": lambda x, y: collections.defaultdict(int, image=x, y=y),
        "bare": lambda x, y: x,
    }
    expected = _filled(_recipe(Images(N), *OPS), [3, 5], [3, 5])[0]
    for name, make in kinds.items():

        class Data(Images):
            def __getitem__(self, i, make=make):
                return make(*super().__getitem__(i))

        recipe = _recipe(Data(N), *OPS)
        arrays = _filled(recipe, [3, 5], [3, 5])
        which = [f.name for f in recipe.fields].index(
            {"named": "picture", "dict": "image", "ordered": "pixel_values", "default": "image",
             "bare": "sample"}.get(name, "0")
        )  # fmt: skip
        assert np.array_equal(arrays[which], expected), name
        batch = recipe.build(arrays)
        assert type(batch) is (np.ndarray if name == "bare" else type(make(1, 2))), name


def test_a_dict_without_an_image_is_refused_with_the_names_that_would_do():
    class Data(Images):
        def __getitem__(self, i):
            return {"pixels": image(i)}

    with pytest.raises(SampleFailure) as e:
        _recipe(Data(N), *OPS).probe(0, 0, 0)
    assert isinstance(e.value.__cause__, SampleError)
    assert "pixel_values" in str(e.value.__cause__)


def test_functions_run_in_their_place_and_see_the_whole_sample():
    seen = []

    def before(sample):
        seen.append(("before", sample[0].dtype, sample[0].shape))
        return sample[0], sample[1] + 100

    def after(sample, stream):
        seen.append(("after", sample[0].dtype, sample[0].shape))
        return sample[0] * 2, sample[1], stream.integers(1000)

    recipe = _recipe(Images(N), before, *OPS, after)
    x, y, extra = recipe.sample(3, 7, 2)
    plain, label = _recipe(Images(N), *OPS).sample(3, 7, 2)
    assert seen == [("before", np.uint8, (12, 12, 3)), ("after", np.float32, (3, 12, 12))]
    assert np.array_equal(x, plain * 2)
    assert y == label + 100
    assert 0 <= extra < 1000


def test_a_function_draws_the_same_however_often_and_wherever_it_runs():
    def draw(sample, rng):
        return (*sample, rng.integers(1 << 30), rng.uniform())

    recipe = _recipe(Images(N), draw)
    first = [recipe.sample(i, i, 0)[2:] for i in range(N)]
    assert [recipe.sample(i, i, 0)[2:] for i in reversed(range(N))] == first[::-1]
    assert len(set(first)) == N
    assert recipe.sample(0, 0, 2)[2:] != first[0]


def test_adding_an_op_changes_the_draws_of_no_other():
    plain = _recipe(Images(N), T.RandomCrop(12, padding=2), T.RandomErasing(p=0.5))
    more = _recipe(
        Images(N), T.RandomCrop(12, padding=2), T.RandomVerticalFlip(), T.RandomErasing(p=0.5)
    )
    for position in range(10):
        a = {d["op"]: d for d in plain.explain(1, position, 0)}
        b = {d["op"]: d for d in more.explain(1, position, 0)}
        assert a == {name: b[name] for name in a}


def test_what_is_explained_is_what_is_drawn_for_that_position_only():
    recipe = _recipe(Images(N), *OPS)
    assert recipe.explain(3, 7, 2) == recipe.explain(3, 7, 2)
    assert recipe.explain(3, 7, 2) != recipe.explain(3, 8, 2)


def test_the_description_is_json_and_tells_every_setting():
    import json

    texts = {
        json.dumps(_recipe(Images(N), *ops).describe())
        for ops in (
            [], OPS, OPS[:3], OPS[::-1], [*OPS[:3], T.RandomErasing(p=0.25)], [np.asarray, *OPS]
        )
    }  # fmt: skip
    assert len(texts) == 6


def test_transforms_need_images():
    with pytest.raises(ConfigError, match=r"float64\[\]"):
        _recipe(datasets.ArrayDataset(np.zeros(5), np.zeros(5)), *OPS)


def test_in_memory_arrays_of_any_kind_pass_unchanged_without_transforms():
    arrays = (np.arange(20).reshape(5, 4), np.arange(5) > 2, np.arange(5, dtype=">f4"))
    recipe = _recipe(datasets.ArrayDataset(*arrays))
    assert recipe.bulk
    for made, source in zip(_filled(recipe, [4, 0, 4], [0, 1, 2]), arrays, strict=True):
        assert np.array_equal(made, source[[4, 0, 4]])
        assert made.dtype.isnative


def test_a_data_set_is_not_changed_by_transforms_that_work_in_place():
    def spoil(sample):
        sample[0][:] = 0
        return sample

    source = images(N)
    recipe = _recipe(datasets.ArrayDataset(source, np.arange(N)), spoil, *OPS)
    _filled(recipe, range(N), range(N))
    assert np.array_equal(source, images(N))


def test_a_failure_keeps_its_cause_and_can_be_pickled():
    import pickle

    failure = SampleFailure(3, 7, "read")
    again = pickle.loads(pickle.dumps(failure))
    assert (again.sample_id, again.position, again.stage) == (3, 7, "read")


@dataclasses.dataclass
class Box:
    image: np.ndarray
    label: int


def test_a_dataclass_sample_passes_through_functions():
    class Data(Images):
        def __getitem__(self, i):
            return Box(*super().__getitem__(i))

    def halve(box):
        return Box(box.image[::2, ::2], box.label)

    recipe = _recipe(Data(N), halve)
    batch = recipe.build(_filled(recipe, [1, 2], [0, 1]))
    assert isinstance(batch, Box)
    assert batch.image.shape == (2, 6, 6, 3)
