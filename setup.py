"""The extension of `pipeline.datasets.jpeg`: left out where it cannot be built.

It needs a C compiler, Python's headers and libjpeg's (Debian: libjpeg62-turbo-dev, Ubuntu:
libjpeg-turbo8-dev); it links no library, see `region.c`.
"""

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension(
            "pipeline.datasets._region",
            ["pipeline/datasets/region.c"],
            optional=True,
            py_limited_api=True,
        )
    ],
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
