"""Everything runs in processes of its own: the switches belong to a whole process."""

import pytest

from tests.helpers import python

pytest.importorskip("torch")


def test_one_line_seeds_everything():
    python("""
import random
import numpy as np, torch
import rng
from rng.torch.seeding import manual_seed

def draw():
    return [random.random(), np.random.random(), rng.default_generator().uniform(1)[0],
            torch.rand(1).item()]

def seeded(seed):
    manual_seed(seed)
    assert rng.default_seed() == torch.initial_seed() == seed
    return draw()

high = (1 << 63) + 5
assert seeded(high) == seeded(high)
# torch's CPU generator is known to look at the low 32 bits alone.
assert all(a != b for a, b in zip(seeded(high)[:3], seeded(high ^ 1 << 40)[:3]))
assert all(a != b for a, b in zip(seeded(high), seeded(high ^ 1)))
small = seeded(7)
random.seed(7); np.random.seed(7); torch.manual_seed(7); rng.manual_seed(7)
assert draw() == small                             # the libraries' own meaning of a small seed
for seed, kind in ((-1, ValueError), (1 << 64, ValueError), (1.5, TypeError)):
    try:
        manual_seed(seed)
    except kind:
        assert rng.default_seed() == 7
        continue
    raise AssertionError(seed)
""")


def test_every_switch_is_set_reported_and_kept_the_second_time():
    python("""
import os, warnings
warnings.simplefilter("error")
import torch
from rng.torch.seeding import manual_seed
torch.backends.cudnn.benchmark = True
report = manual_seed(1)
assert report.warnings == ()
assert not [s for s in report.settings if s.state in ("missing", "refused")], report
assert report["torch.backends.cudnn.benchmark"].before == "True"
assert report["torch.backends.cudnn.benchmark"].state == "set"
assert torch.are_deterministic_algorithms_enabled()
assert not torch.is_deterministic_algorithms_warn_only_enabled()
assert torch.backends.cudnn.deterministic and not torch.backends.cudnn.benchmark
assert torch.utils.deterministic.fill_uninitialized_memory
matmul = torch.backends.cuda.matmul
assert not matmul.allow_fp16_reduced_precision_reduction
assert not matmul.allow_bf16_reduced_precision_reduction
assert not matmul.allow_tf32 and not torch.backends.cudnn.allow_tf32     # readable, as before
assert torch.backends.cudnn.conv.fp32_precision == matmul.fp32_precision == "ieee"
assert torch.get_float32_matmul_precision() == "highest"
assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
again = manual_seed(1, warn_only=True)
assert again["torch.use_deterministic_algorithms"].after == "warn_only"
assert {s.state for s in again.settings[6:]} <= {"kept"} | {again.settings[6].state}
text = str(report)
for word in ("seed 1 (0x", "cudnn.benchmark", "True -> False", "stays open", "kind of GPU",
             "driver and libraries", "compiler", "world size"):
    assert word in text, (word, text)
""")


def test_it_warns_of_what_came_too_late_is_missing_or_refused():
    python("""
import os, warnings, torch
torch.cuda.is_available = torch.cuda.is_initialized = lambda: True
torch.cuda.device_count = lambda: 0
from rng.torch.seeding import manual_seed
with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always")
    report = manual_seed(3)
    again = manual_seed(3)                          # the second time it is in place
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":16:8"
    users = manual_seed(3)
assert again["CUBLAS_WORKSPACE_CONFIG"].state == "kept"
assert users["CUBLAS_WORKSPACE_CONFIG"].after == ":16:8"         # as good: it stays
assert len(seen) == 1 and "CUDA was initialised before" in str(seen[0].message), seen
assert seen[0].filename == "<string>", seen[0].filename     # the user's line
assert report.warnings and "warning: CUDA" in str(report)

# switches that a torch has not, or that refuse, are reported
from rng.torch import seeding
torch.cuda.is_available = lambda: False
missing = seeding._attribute("torch.backends.cuda.matmul.no_such_switch", True, "")
refused = ("torch.stubborn", lambda: 1, lambda value: None, 2, "")
broken = ("torch.broken", lambda: 1, lambda value: 1 / 0, 2, "")
real = seeding._switches
seeding._switches = lambda warn_only: [missing, refused, broken, *real(warn_only)]
with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always")
    report = seeding.manual_seed(3)
assert report[missing[0]].state == "missing" and "not in torch" in report[missing[0]].note
assert report["torch.stubborn"].state == "refused"
assert "ZeroDivisionError" in report["torch.broken"].note
assert [str(w.message).split()[0] for w in seen] == ["torch.stubborn", "torch.broken"]
assert report["torch.backends.cudnn.deterministic"].after == "True"
assert "missing" in str(report) and "refused" in str(report)

# a torch before 2.9 has the older names of the TF32 switches alone
del type(torch.backends).fp32_precision
seeding._switches = real
names = {s.name for s in seeding.manual_seed(3).settings}
assert not [n for n in names if "fp32_precision" in n], names
assert "torch.backends.cudnn.allow_tf32" in names
""")
