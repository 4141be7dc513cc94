import dataclasses
import inspect
import json
import math
import os
import pickle
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import numpy as np
import pytest
from PIL import Image

from pipeline import DataLoader, loader, plan
from pipeline import config as config_module
from pipeline import transforms as T
from pipeline.config import (
    build_dataset,
    build_transforms,
    known_paths,
    load_config,
    parse_override,
)
from pipeline.errors import ConfigError, DatasetError
from pipeline.schema import Mismatch, Range, convert, expected, fields

CONFIGS = Path(__file__).parents[2] / "configs"
TEXT = """
seed = 7
mode = "reproducible"
[dataset]
kind = "cifar10"
root = "data"
[loader]
batch_size = 512
shuffle = true
[[transforms]]
kind = "RandomCrop"
size = 32
padding = 4
[[transforms]]
kind = "Normalize"
preset = "cifar10"
[[transforms]]
kind = "RandomErasing"
p = 1e-1
[run]
epochs = 3
"""


def refused(overrides, source=TEXT):
    with pytest.raises(ConfigError) as caught:
        load_config(source, overrides)
    return caught.value


# ---------------------------------------------------------------- reading
def test_a_whole_file_becomes_frozen_dataclasses():
    config = load_config(TEXT)
    assert (config.seed, config.mode) == (7, "reproducible")
    assert config.dataset.kind == "cifar10"
    assert config.dataset.arguments == {"root": "data"}
    assert config.loader.batch_size == 512
    assert config.loader.shuffle is True
    assert config.run.epochs == 3
    assert build_transforms(config) == [
        T.RandomCrop(32, padding=4),
        T.Normalize(preset="cifar10"),
        T.RandomErasing(p=0.1),
    ]
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.seed = 8
    assert pickle.loads(pickle.dumps(config)) == config


def test_an_empty_text_is_all_defaults():
    config = load_config("\n")
    assert (config.seed, config.mode, config.dataset, config.transforms) == (
        None,
        "reproducible",
        None,
        (),
    )
    kwargs = config.loader_kwargs()
    assert (kwargs["batch_size"], kwargs["lanes"], kwargs["split"]) == (1, 16, "train")
    with pytest.raises(ConfigError, match="dataset: missing"):
        build_dataset(config)


def test_the_source_may_be_a_path_a_text_or_a_mapping(tmp_path):
    odd = tmp_path / "lr=0.1.toml"
    odd.write_bytes(b"\xef\xbb\xbfseed = 3\r\nmode = 'fast'\r\n")
    for source in (odd, str(odd), "seed = 3\nmode = 'fast'", {"seed": 3, "mode": "fast"}):
        config = load_config(source)
        assert (config.seed, config.mode) == (3, "fast")
    assert load_config(odd).source == str(odd)
    assert load_config("seed = 3").seed == 3


def test_a_mapping_is_not_changed_by_overrides():
    source = {"loader": {"batch_size": 2}, "transforms": [{"kind": "Resize", "size": 8}]}
    before = json.dumps(source)
    config = load_config(source, {"loader.batch_size": 3, "transforms[0].size": 9})
    assert json.dumps(source) == before
    assert (config.loader.batch_size, config.transforms[0].arguments) == (3, {"size": 9})


def test_a_missing_or_broken_file_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"nowhere\.toml.*No such file"):
        load_config(tmp_path / "nowhere.toml")
    bad = tmp_path / "bad.toml"
    bad.write_bytes(b"seed = 3\nmode fast\n")
    with pytest.raises(ConfigError, match=r"(?s)not valid TOML.*line 2.*bad\.toml"):
        load_config(bad)
    bad.write_bytes(b"mode = '\xff'\n")
    with pytest.raises(ConfigError, match="UTF-8"):
        load_config(bad)
    with pytest.raises(ConfigError, match="not valid TOML"):
        load_config("seed = 3\nseed = 4\n")


# ---------------------------------------------------------------- unknown keys
@pytest.mark.parametrize(
    ("key", "says"),
    [
        ("loader.shufle", "loader.shufle: unknown key; nearest valid: loader.shuffle"),
        ("repoducible", 'repoducible: unknown key; nearest valid: mode = "reproducible"'),
        ("sed", "sed: unknown key; nearest valid: seed"),
        ("loder", "loder: unknown key; nearest valid: loader"),
        ("batch_size", "batch_size: unknown key here; nearest valid: loader.batch_size"),
        ("batchsize", "batchsize: unknown key; nearest valid: loader.batch_size"),
        ("run.batch_size", "run.batch_size: unknown key here; nearest valid: loader.batch_size"),
        ("loader.seed", "loader.seed: unknown key here; nearest valid: seed (top level"),
        ("loader.epochs", "loader.epochs: unknown key here; nearest valid: run.epochs"),
        ("loader.root", "loader.root: unknown key here; nearest valid: dataset.root"),
        ("dataset.rot", "dataset.rot: unknown key; nearest valid: dataset.root"),
        ("dataset.orientation", "dataset.orientation: unknown key; valid here: dataset.kind"),
        ("transforms[0].pading", "transforms[0].pading: unknown key; nearest valid: transforms[0].padding"),
        ("transforms[2].padding", "transforms[2].padding: unknown key; valid here: transforms[2].kind"),
        ("loader.qwertyuiop", "loader.qwertyuiop: unknown key; valid here: loader.batch_size, "),
    ],
)  # fmt: skip
def test_an_unknown_key_is_refused_with_its_path_and_the_nearest_valid_one(key, says):
    error = refused({key: True})
    assert error.what.startswith(says)
    assert error.fields["field"] == key


def test_a_missing_key_is_named():
    assert refused({"dataset.root": None}).what == "dataset.root: missing; expected a string"
    assert refused({"dataset.kind": None}).what.startswith("dataset.kind: missing; expected one of")
    assert refused({"transforms[0].size": None}).what.startswith("transforms[0].size: missing")


def test_an_unknown_kind_is_refused_with_the_nearest_one():
    error = refused({"transforms[0].kind": "RandomCorp"})
    assert error.what.startswith("transforms[0].kind: expected one of 'CenterCrop'")
    assert error.do == 'nearest valid: "RandomCrop"'
    assert refused({"dataset.kind": "cifar"}).do == 'nearest valid: "cifar10"'


@pytest.mark.parametrize(
    "text", ["transforms = 3\n", "[transforms]\nkind='Resize'\n", "transforms = ['Resize']\n"]
)
def test_transforms_must_be_a_list_of_tables(text):
    assert refused({}, text).what.startswith("transforms")


@pytest.mark.parametrize("text", ["loader = 3\n", "run = [1]\n", "dataset = 'mnist'\n"])
def test_a_section_must_be_a_table(text):
    assert "expected a table, got" in refused({}, text).what


# ---------------------------------------------------------------- values
@pytest.mark.parametrize(
    ("key", "bad"),
    [
        ("transforms[2].p", "0.1"),
        ("transforms[2].p", 1.5),
        ("transforms[2].p", -0.1),
        ("transforms[2].p", math.nan),
        ("transforms[2].p", math.inf),
        ("transforms[2].p", True),
        ("transforms[2].scale", 0.3),
        ("transforms[2].scale", [0.3, 0.1]),
        ("transforms[0].size", 32.0),
        ("transforms[0].size", [32, 32, 32]),
        ("transforms[1].preset", "cifr10"),
        ("loader.batch_size", 32.0),
        ("loader.batch_size", "32"),
        ("loader.batch_size", 0),
        ("loader.batch_size", True),
        ("loader.num_workers", -1),
        ("loader.lanes", 65537),
        ("loader.shuffle", 1),
        ("loader.shuffle", "true"),
        ("loader.timeout", -1.0),
        ("loader.timeout", 10**400),
        ("loader.worker_method", "fork"),
        ("seed", 1e3),
        ("seed", "7"),
        ("seed", -1),
        ("seed", 2**64),
        ("mode", "quick"),
        ("mode", True),
        ("dataset.split", "valid"),
        ("dataset.root", 3),
        ("run.epochs", 0),
    ],
)
def test_a_value_of_another_type_or_range_is_refused_with_key_value_and_expected(key, bad):
    error = refused({key: bad})
    assert error.fields["field"] == key
    assert error.what.startswith(f"{key}: ")
    assert str(tuple(bad) if isinstance(bad, list) else bad) in error.what
    assert "expected" in error.what or "must be" in error.what


@pytest.mark.parametrize(
    ("key", "good"),
    [("transforms[2].p", 1), ("transforms[2].p", 0.1), ("loader.timeout", 3), ("seed", 2**64 - 1)],
)
def test_ints_stand_for_numbers_and_the_ends_of_ranges_are_in(key, good):
    load_config(TEXT, {key: good})


def test_the_hint_says_how_to_write_it():
    assert refused({"loader.batch_size": "32"}).do == "write batch_size = 32"
    assert refused({"loader.batch_size": 32.0}).do == "write batch_size = 32"
    assert refused({"loader.shuffle": "true"}).do == "write shuffle = true"
    assert refused({"loader.batch_size": "many"}).do == ""


def test_an_error_says_whether_the_file_or_an_override_is_wrong(tmp_path):
    path = tmp_path / "a.toml"
    path.write_text("[loader]\nbatch_size = '3'\n")
    assert refused({}, path).where == str(path)
    assert refused({"loader.batch_size": "4"}, path).where == "an override"


def test_the_rank_must_be_below_the_world_size():
    assert refused({"loader.rank": 2, "loader.world_size": 2}).fields["field"] == "loader.rank"
    assert load_config(TEXT, {"loader.rank": 1, "loader.world_size": 2}).loader.rank == 1


# ---------------------------------------------------------------- overrides
def test_overrides_are_dotted_or_nested():
    for overrides in (
        {"mode": "fast", "seed": 8, "loader.batch_size": 64, "transforms.2.p": 0.5},
        {"mode": "fast", "seed": 8, "loader": {"batch_size": 64}, "transforms[2].p": 0.5},
    ):
        config = load_config(TEXT, overrides)
        assert (config.mode, config.seed, config.loader.batch_size) == ("fast", 8, 64)
        assert config.loader.shuffle is True
        assert config.transforms[2].arguments == {"p": 0.5}


def test_overrides_make_sections_replace_lists_and_go_back_to_defaults():
    config = load_config(
        "seed = 1\n", {"dataset": {"kind": "digits"}, "run.epochs": 2, "seed": None}
    )
    assert (config.dataset.kind, config.run.epochs, config.seed) == ("digits", 2, None)
    config = load_config(TEXT, {"transforms": [{"kind": "ToTensor"}]})
    assert build_transforms(config) == [T.ToTensor()]
    assert load_config(TEXT, {"dataset.root": Path("x")}).dataset.arguments == {"root": "x"}


@pytest.mark.parametrize(
    "key", ["transforms[9].p", "transforms.x", "seed.x", "loader.batch_size.x"]
)
def test_an_override_of_nothing_is_refused(key):
    assert refused({key: 1}).where == "an override"


@pytest.mark.parametrize(
    ("text", "key", "value"),
    [
        ("loader.batch_size=64", "loader.batch_size", 64),
        (" seed = 0x10 ", "seed", 16),
        ("transforms[3].p=1e-1", "transforms[3].p", 0.1),
        ("loader.shuffle=true", "loader.shuffle", True),
        ("mode=fast", "mode", "fast"),
        ('mode="fast"', "mode", "fast"),
        ("dataset.root=/data/a=b", "dataset.root", "/data/a=b"),
        ("dataset.root=2024-01-01", "dataset.root", "2024-01-01"),
        ("dataset.extensions=['.png']", "dataset.extensions", [".png"]),
        ("transforms=[{kind='ToTensor'}]", "transforms", [{"kind": "ToTensor"}]),
        ("run.state=1\nmode='fast'", "run.state", "1\nmode='fast'"),
        ("run.state=", "run.state", ""),
    ],
)
def test_a_command_line_override_is_toml_or_bare_text(text, key, value):
    assert parse_override(text) == (key, value)


@pytest.mark.parametrize("text", ["loader.batch_size", "=3", " = "])
def test_a_command_line_override_needs_a_key_and_a_value(text):
    with pytest.raises(ConfigError, match="key=value"):
        parse_override(text)


# ---------------------------------------------------------------- the schema
def value_of(wanted: Any, name: str) -> Any:
    """A valid value that is not the default, made from the annotation."""
    special = {"preset": "mnist", "layout": "HWC", "dtype": "float16", "padding_mode": "edge"}
    special |= {"interpolation": "bilinear", "scale": [0.1, 0.2], "ratio": [1, 2], "size": 5}
    special |= {"mean": 0.5, "std": 0.5, "extensions": [".bmp"], "p": 0.125, "rank": 0}
    if name in special and wanted is not bool:
        return special[name]
    shown = expected(wanted)
    if shown.startswith("one of"):
        return eval(f"({shown.removeprefix('one of ')},)", {})[-1]
    return {"a": "x", "t": True}.get(shown[0]) if "string" in shown or shown[0] == "t" else 3


def test_every_key_of_the_schema_reaches_what_is_built():
    checked = {"seed", "mode", "dataset", "loader", "transforms", "run"}
    for section, target in (
        ("loader", config_module.LoaderConfig),
        ("run", config_module.RunConfig),
    ):
        for name, field in fields(target).items():
            value = value_of(field.type, name)
            needs = name in ("prefetch_factor", "timeout", "multiprocessing_context")
            workers = {"loader.num_workers": 1} if needs else {}
            config = load_config("seed = 1", {section: {name: value}, **workers})
            got = config.loader_kwargs()[name] if section == "loader" else getattr(config.run, name)
            assert got == value, name
            checked.add(f"{section}.{name}")
    for kind, target in config_module.TRANSFORMS.items():
        for name, field in fields(target).items():
            arguments = {n: value_of(f.type, n) for n, f in fields(target).items() if f.required}
            arguments[name] = value_of(field.type, name)
            if name in ("mean", "std"):
                arguments |= {"mean": 0.5, "std": 0.5}
            elif kind == "Normalize" and name != "preset":
                arguments["preset"] = "none"
            op = build_transforms(load_config({"transforms": [{"kind": kind, **arguments}]}))[0]
            got = getattr(op, name)
            assert (list(got) if isinstance(got, tuple) else got) == arguments[name], (kind, name)
            checked |= {"transforms[].kind", f"transforms[].{name}"}
    for kind, target in config_module.DATASETS.items():
        given = {n: value_of(f.type, n) for n, f in fields(target).items()}
        dataset = load_config({"dataset": {"kind": kind, **given}}).dataset
        inspect.signature(target).bind(**dataset.arguments)
        assert dataset.arguments.keys() == given.keys()
        checked |= {"dataset.kind", *(f"dataset.{name}" for name in given)}
    assert checked == set(known_paths())


def test_every_annotation_is_understood():
    targets = [config_module.LoaderConfig, config_module.RunConfig]
    targets += [*config_module.DATASETS.values(), *config_module.TRANSFORMS.values()]
    for target in targets:
        for field in fields(target).values():
            assert field.type is Any or "a value" not in expected(field.type), (target, field)


def test_every_public_op_is_a_kind():
    public = [getattr(T, name) for name in T.__all__]
    ops = {op for op in public if isinstance(op, type) and issubclass(op, T.Op)} - {T.Op}
    assert set(config_module.TRANSFORMS.values()) == ops
    assert {"RandomCrop", "RandomErasing", "Normalize"} <= config_module.TRANSFORMS.keys()


def test_the_loader_keys_are_the_data_loaders_with_the_same_defaults():
    parameters = inspect.signature(DataLoader).parameters
    defaults = load_config("\n").loader_kwargs()
    assert {name: parameters[name].default for name in defaults} == defaults
    # What is not here needs Python (objects, functions), or is said by `mode`.
    assert parameters.keys() - defaults.keys() == {
        "dataset", "transforms", "sampler", "batch_sampler", "collate_fn",
        "worker_init_fn", "generator", "pin_memory_device", "in_order",
    }  # fmt: skip


def test_the_loaders_choices_are_the_plans():
    types = {name: field.type for name, field in fields(config_module.LoaderConfig).items()}
    assert get_args(types["order"]) == plan.ORDERS
    assert get_args(get_args(types["tail"])[0]) == plan.TAILS
    assert get_args(fields(config_module.Config)["mode"].type) == loader.MODES


def test_no_workers_need_no_prefetch_factor():
    config = load_config("[loader]\nnum_workers = 2\nprefetch_factor = 4\n")
    assert config.loader_kwargs()["prefetch_factor"] == 4
    config = load_config("[loader]\nnum_workers = 0\nprefetch_factor = 4\n")
    assert config.loader_kwargs()["prefetch_factor"] is None
    config = load_config(
        '[loader]\nnum_workers = 0\ntimeout = 4\nmultiprocessing_context = "spawn"\n'
    )
    assert config.loader_kwargs()["timeout"] == 0
    assert config.loader_kwargs()["multiprocessing_context"] is None


@pytest.mark.parametrize(
    ("split", "phase"), [("train", "train"), ("val", "val"), ("test", "val"), (None, "train")]
)
def test_the_loaders_split_follows_the_datasets(split, phase):
    config = load_config({"dataset": {"kind": "mnist", "root": "x"}}, {"dataset.split": split})
    assert config.loader_kwargs()["split"] == phase
    assert load_config("[loader]\nsplit = 'holdout'").loader_kwargs()["split"] == "holdout"


@pytest.mark.parametrize(
    ("value", "wanted", "result"),
    [
        ([1, 2.5], Sequence[float], (1.0, 2.5)),
        ([1, 2], tuple[int, int], (1, 2)),
        ([1, 2, 3], tuple[int, int], Mismatch),
        (3, float | Sequence[float], 3.0),
        (["a"], float | Sequence[float], Mismatch),
        ("ab", Sequence[str], Mismatch),
        (None, int | None, None),
        (0, Annotated[int, Range(0, 1)], 0),
        (2, Annotated[int, Range(0, 1)], Mismatch),
        (1, Literal["1", True], Mismatch),
        (True, Literal["1", True], True),
        (Path("x"), str | os.PathLike[str], "x"),
        (b"x", str | os.PathLike[str], Mismatch),
        (object, Any, object),
    ],
)
def test_convert(value, wanted, result):
    if result is Mismatch:
        with pytest.raises(Mismatch):
            convert(value, wanted)
    else:
        got = convert(value, wanted)
        assert (got, type(got)) == (result, type(result))


# ---------------------------------------------------------------- configs/
def test_the_configs_are_these():
    assert sorted(path.name for path in CONFIGS.glob("*.toml")) == [
        "cifar10.toml",
        "digits.toml",
        "imagefolder.toml",
        "mnist.toml",
    ]


@pytest.mark.parametrize(
    ("name", "image", "out"),
    [
        ("digits", (8, 8, 1), (1, 8, 8)),
        ("mnist", (28, 28, 1), (1, 28, 28)),
        ("cifar10", (32, 32, 3), (3, 32, 32)),
        ("imagefolder", None, (3, 224, 224)),
    ],
)
def test_each_config_loads_and_its_transforms_fit_its_images(name, image, out):
    config = load_config(CONFIGS / f"{name}.toml")
    assert (config.seed, config.mode, config.loader.shuffle) == (7, "reproducible", True)
    chain = T.Chain(build_transforms(config), image)
    array = np.zeros(image or (40, 50, 3), np.uint8)
    made = chain.apply_one(array, 0, 0, 1, config.loader.lanes, None)
    assert (made.shape, made.dtype) == (out, np.float32)


def test_the_digits_config_has_the_digits_mean_and_deviation():
    pytest.importorskip("sklearn")
    config = load_config(CONFIGS / "digits.toml", {"dataset.split": "all"})
    values = build_dataset(config).arrays()[0] / 255
    normalise = build_transforms(config)[-1]
    assert (normalise.mean, normalise.std) == (round(values.mean(), 4), round(values.std(), 4))


def test_each_config_builds_its_dataset_from_files_of_its_format(tmp_path):
    label, planes = bytes([3]), bytes(3072)
    for i in range(1, 6):
        (tmp_path / f"data_batch_{i}.bin").write_bytes(label + planes)
    head = bytes([0, 0, 8, 3]) + struct.pack(">3I", 1, 28, 28)
    (tmp_path / "train-images-idx3-ubyte").write_bytes(head + bytes(784))
    (tmp_path / "train-labels-idx1-ubyte").write_bytes(bytes([0, 0, 8, 1, 0, 0, 0, 1, 3]))
    for c in "abcd":
        (tmp_path / c).mkdir()
        Image.new("RGB", (8, 8)).save(tmp_path / c / "1.png")
    for name, index in (("cifar10", 0), ("mnist", 0), ("imagefolder", 3)):
        config = load_config(CONFIGS / f"{name}.toml", {"dataset.root": tmp_path})
        image, label = build_dataset(config)[index]
        assert (image.dtype, label) == (np.uint8, 3)


def test_tokens_are_read_from_a_config(tmp_path):
    np.save(tmp_path / "tokens.npy", np.arange(100, dtype=np.uint16))
    text = '[dataset]\nkind = "token_windows"\nwindow = 8\ntargets = true\n[loader]\non_error = "skip"\n'
    config = load_config(text, {"dataset.source": str(tmp_path / "tokens.npy")})
    windows = build_dataset(config)
    assert [part.tolist() for part in windows[1]] == [[*range(8, 16)], [*range(9, 17)]]
    assert config.loader_kwargs()["on_error"] == "skip"
    assert "dataset.window" in str(refused({"dataset.windw": 3}, text))


@pytest.mark.parametrize("name", ["mnist", "cifar10", "imagefolder"])
def test_a_config_whose_files_are_missing_says_where_it_looked(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = load_config(CONFIGS / f"{name}.toml")
    with pytest.raises(DatasetError) as caught:
        build_dataset(config)
    assert config.dataset.arguments["root"] in str(caught.value)
