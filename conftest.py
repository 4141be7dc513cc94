"""The doctests of modules that need an optional package are not collected where it is missing."""

import importlib.util

_NEEDS = {
    "torch": ["rng/torch/*", "pipeline/torch.py", "pipeline/torch_samplers.py"],
    "transformers": ["pipeline/integrations.py"],
}
collect_ignore_glob = [
    path
    for package, paths in _NEEDS.items()
    if not importlib.util.find_spec(package)
    for path in paths
]
# It has no examples, and to import it is to choose between Triton's compiler and its interpreter: that is
# for tests/rng/gpu to do.
collect_ignore_glob.append("rng/gpu.py")
