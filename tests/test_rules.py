"""Rules of this code base that no linter knows."""

import ast
import re

import pytest

from tests.helpers import ROOT

FILES = sorted(
    path
    for package in ("pipeline", "rng")
    for path in (ROOT / package).rglob("*.py")
    if "__pycache__" not in path.parts
)
TREES = {str(path.relative_to(ROOT)): ast.parse(path.read_text()) for path in FILES}


def _calls(tree):
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield node, ast.unparse(node.func)


def _imports(tree):
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


def _found(wanted, allowed=()):
    """[file:line] of every call for which `wanted(node, name)` holds."""
    return [
        f"{path}:{node.lineno}"
        for path, tree in TREES.items()
        if path not in allowed
        for node, name in _calls(tree)
        if wanted(node, name)
    ]


def test_there_is_something_to_look_at():
    assert len(FILES) > 40
    assert "pipeline/transfer/layout.py" in TREES


def test_only_layout_knows_byte_positions():
    # The others may view a whole buffer, from its first byte to its last.
    def with_offset(node, name):
        if name.endswith("frombuffer"):
            return len(node.args) > 3 or any(k.arg == "offset" for k in node.keywords)
        return name.endswith("unpack_from")

    allowed = (
        "pipeline/transfer/layout.py",
        "pipeline/transfer/ring.py",
        "pipeline/parcel.py",  # its own formats, read by nobody else
        "pipeline/tree.py",
    )
    found = [f for f in _found(with_offset, allowed) if not f.startswith("pipeline/datasets/")]
    assert found == []


def test_only_layout_and_those_who_write_them_name_the_control_words():
    word = re.compile(r"\b[WTL]_[A-Z_]+\b")
    users = {
        str(path.relative_to(ROOT))
        for path in FILES
        if word.search(re.sub(r"\"[^\"]*\"", "", path.read_text())) and "transfer" in path.parts
    }
    assert users <= {
        "pipeline/transfer/layout.py",
        "pipeline/transfer/cells.py",
        "pipeline/transfer/station.py",
        "pipeline/transfer/ring.py",
    }


def test_nothing_sleeps():
    assert _found(lambda _, name: name in ("time.sleep", "sleep")) == []


def test_only_the_channel_imports_zmq():
    users = [
        path
        for path, tree in TREES.items()
        if any(m.split(".")[0] == "zmq" for m in _imports(tree))
    ]
    assert users == ["pipeline/workers/channel.py"]


@pytest.mark.parametrize("module", ["torch", "triton"])
def test_optional_packages_are_imported_where_they_are_needed_only(module):
    for path, tree in TREES.items():
        top = {
            name.split(".")[0]
            for node in tree.body
            if isinstance(node, ast.Import | ast.ImportFrom)
            for name in _imports(ast.Module([node], []))
        }
        if module in top:
            allowed = (
                "rng/gpu.py",
                "rng/torch/",
                "pipeline/torch.py",
                "pipeline/torch_samplers.py",
            )
            assert path.startswith(allowed)


def test_no_kernel_is_compiled_with_fastmath_in_parallel_or_always_inlined():
    def unsafe(node, name):
        return any(
            keyword.arg in ("fastmath", "parallel", "inline")
            and not (
                isinstance(keyword.value, ast.Constant) and keyword.value.value in (False, "never")
            )
            for keyword in node.keywords
            if name.split(".")[-1] in ("njit", "jit", "kernel", "vectorize", "guvectorize")
        )

    assert _found(unsafe) == []


def test_nothing_is_unpickled_but_our_own_payload():
    found = _found(lambda _, name: name in ("pickle.loads", "pickle.load", "cloudpickle.loads"))
    assert {f.split(":")[0] for f in found} == {"pipeline/parcel.py"}  # what a worker or we packed


def test_the_users_process_is_never_forked():
    def forks(_, name):
        return name in ("os.fork", "os.forkpty", "multiprocessing.Process", "ProcessPoolExecutor")

    found = _found(forks)
    assert {f.split(":")[0] for f in found} == {"pipeline/workers/launcher.py"}
    assert not [
        p for p, t in TREES.items() if any(m.startswith("multiprocessing") for m in _imports(t))
    ]


def test_no_global_generator_is_imported():
    for path, tree in TREES.items():
        names = {m for m in _imports(tree) if m == "random" or m.startswith("numpy.random")}
        allowed = ("pipeline/transforms/stream.py", "pipeline/reseed.py", "rng/torch/seeding.py")
        assert not names or path in allowed, path


def test_no_wall_clock_reaches_a_batch():
    assert (
        _found(lambda _, name: name in ("time.time", "datetime.now", "datetime.datetime.now")) == []
    )


def test_rng_knows_no_pipeline():
    for path, tree in TREES.items():
        if path.startswith("rng/"):
            assert not [m for m in _imports(tree) if m.split(".")[0] == "pipeline"], path


def test_no_file_of_ours_names_a_path_of_a_machine():
    for path in FILES:
        assert not re.search(r"[\"'`\s](/tmp|/work|/home)/", path.read_text()), path
