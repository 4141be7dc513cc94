"""The doctests of modules that need an optional package are not collected where it is missing."""

import importlib.util

_NEEDS = {
    "torch": ["rng/torch/*", "rng/gpu.py", "pipeline/torch.py", "pipeline/torch_samplers.py"],
    "triton": ["rng/gpu.py"],
    "transformers": ["pipeline/integrations.py"],
}
collect_ignore_glob = [
    path
    for package, paths in _NEEDS.items()
    if not importlib.util.find_spec(package)
    for path in paths
]
