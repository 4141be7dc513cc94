"""The kernels compiled to PTX, without a device: no operation on the value path may round twice."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers import ROOT


def compiled(*arguments):
    """{name: text} of compile_ptx.py."""
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = str(ROOT)
    command = [sys.executable, str(Path(__file__).with_name("compile_ptx.py")), *arguments]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr[-3000:]
    return json.loads(run.stdout)


@pytest.fixture(scope="module")
def texts():
    """{name: PTX} of all kernels, for sm_80 and sm_90."""
    pytest.importorskip("torch")
    pytest.importorskip("triton")
    return compiled()


def test_nothing_on_the_value_path_depends_on_a_compiler(texts):
    assert len(texts) == 59
    for name, text in texts.items():
        adds = re.findall(r"\b(?:add|sub|fma|mad|div|rcp|ex2|lg2|sqrt)\.[\w.]*f(?:16|32)\w*", text)
        assert not adds, (name, adds)
        assert not re.findall(r"\S*\.(?:approx|ftz|full)\b\S*", text), name
        assert not re.findall(r"\bcvt\.r[zmp]\S*", text), name  # casts round to the nearest


def test_only_shifted_numbers_are_added_and_in_float64(texts):
    for name, text in texts.items():
        wide = {
            op for op in re.findall(r"\b[a-z]+\.[\w.]*f64\S*", text) if op[:2] not in ("ld", "mo")
        }
        allowed = {"add.rn.f64", "add.f64", "cvt.f64.f32", "cvt.rn.f32.f64"}
        assert wide <= (allowed if name.endswith("shifted") else set()), (name, wide)


def test_what_is_launched_compiles_to_machine_code_and_moves_sixteen_bytes_where_it_can(texts):
    launched = {name: text for name, text in texts.items() if "launched" in name}
    assert len(launched) == 19
    for name, text in launched.items():
        if " dense " in name and "mask" not in name:
            assert re.search(r"st\.global\.v[24]\.b(32|64)", text), name


def test_a_thread_moves_sixteen_bytes_at_once(texts):
    for name, text in texts.items():
        if "fill" in name or "aligned" in name.split():
            assert "mask" in name or "st.global.v4.b32" in text, name
        if "dropout" in name and "aligned" in name:
            assert "ld.global.v4.b32" in text, name


@pytest.mark.slow
def test_for_amd_nothing_is_added_or_approximated_either():
    pytest.importorskip("torch")
    pytest.importorskip("triton")
    texts = compiled("gfx942")
    assert len(texts) == 20
    # v_fma_mixlo_f16 is a product that is rounded to float16: nothing is added (the assembler's 0).
    exact = re.compile(r"v_(cvt|pk_mul|mul|min|max|cmp_\w+|pack|add_f64|fma_mix(lo|hi)_f16)_?\w*")
    for name, text in texts.items():
        found = set(re.findall(r"\bv_\w*f(?:16|32|64)\w*", text))
        assert all(exact.fullmatch(op) for op in found), (name, found)
        assert name.endswith("shifted") or not any("f64" in op for op in found), (name, found)
        for line in re.findall(r"v_fma_mix.*", text):
            assert re.search(r", 0( op_sel|$)", line), (name, line)
