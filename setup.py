"""The compiled twins of tidemark.formats: built where there is a C compiler, else left out.

Everything else about the package stands in pyproject.toml. A failed build is no failed install:
the pure Python originals run then, and ``tidemark.formats.twins`` says so.
"""

from __future__ import annotations

import os
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup

SOURCES = sorted(Path("tidemark/formats/speedups").glob("*.pyx"))
FLAGS = os.environ.get("TIDEMARK_CFLAGS", "-O3").split()
"""Other ones for a build under the address sanitizer."""

extensions = [
    Extension(
        f"tidemark.formats.speedups.{path.stem}",
        [str(path)],
        extra_compile_args=[*FLAGS, "-fno-strict-aliasing", "-Wno-unused-function"],
        extra_link_args=[flag for flag in FLAGS if flag.startswith("-fsanitize")],
        depends=[str(header) for header in Path("tidemark/formats/speedups").glob("*.h")],
    )
    for path in SOURCES
]
modules = cythonize(
    extensions,
    build_dir="build/cython",
    language_level=3,
    compiler_directives={
        "boundscheck": False,  # every bound is checked by the code itself, once, before a loop
        "wraparound": False,
        "cdivision": True,
        "initializedcheck": False,
    },
)
for module in modules:
    module.optional = True  # only now: cythonize makes new ones without it
setup(ext_modules=modules)
