"""What pyproject.toml cannot say: compiled modules, and the names of packages in a wheel.

- The native modules of tidemark.formats are built if there is a C compiler. A failed build does
  not fail the install: the pure Python implementation is used then, and
  ``tidemark.formats.native.WHY_PURE`` has the reason.
- A wheel has ``services``, ``shared``, ``analytics`` and ``drills`` below ``tidemark``: a user's
  project with a ``services/`` of its own would otherwise hide them (docs/decisions/0034).
"""

from __future__ import annotations

import ast
import os
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_py import build_py

INNER = ("services", "shared", "analytics", "drills")
"""Packages at the top of the repository that a wheel has below ``tidemark``."""

SOURCES = sorted(Path("tidemark/formats/speedups").glob("*.pyx"))
INCLUDED = sorted(
    str(path)
    for pattern in ("*.h", "*.pxi")
    for path in Path("tidemark/formats/speedups").glob(pattern)
)
FLAGS = os.environ.get("TIDEMARK_CFLAGS", "-O3").split()
"""Other ones for a build under the address sanitizer."""

extensions = [
    Extension(
        f"tidemark.formats.speedups.{path.stem}",
        [str(path)],
        extra_compile_args=[*FLAGS, "-fno-strict-aliasing", "-Wno-unused-function"],
        extra_link_args=[flag for flag in FLAGS if flag.startswith("-fsanitize")],
        depends=INCLUDED,
        optional=True,
    )
    for path in SOURCES
]
# setuptools gives these to Cython, which is the base of its build_ext.
CYTHON = {
    "cython_c_in_temp": True,
    "cython_directives": {
        "language_level": 3,
        "boundscheck": False,  # every bound is checked by the code itself, once, before a loop
        "wraparound": False,
        "cdivision": True,
        "initializedcheck": False,
    },
}


def renamed(source: str, path: str) -> str:
    """Return a module's source with its imports of inner packages renamed as in a wheel.

    Only import statements are changed; other names of modules are made from ``__name__`` (see
    shared/runtime/programs.py). Raises ValueError at an import that binds the name of an inner
    package itself: its uses would have to change as well.
    """
    lines = source.splitlines(keepends=True)
    for node in ast.walk(ast.parse(source, path)):
        if isinstance(node, ast.ImportFrom) and not node.level and _is_inner(node.module):
            keyword = "from "
        elif isinstance(node, ast.Import) and any(_is_inner(each.name) for each in node.names):
            if len(node.names) > 1 or node.names[0].asname is None:
                raise ValueError(f"{path}:{node.lineno}: write `from … import …` instead")
            keyword = "import "
        else:
            continue
        line = lines[node.lineno - 1].encode()
        at = node.col_offset + len(keyword)  # in bytes, as ast counts
        lines[node.lineno - 1] = (line[:at] + b"tidemark." + line[at:]).decode()
    return "".join(lines)


def _is_inner(module: str | None) -> bool:
    return module is not None and module.split(".")[0] in INNER


def _name_in_wheel(package: str) -> str:
    return f"tidemark.{package}" if _is_inner(package) else package


class BuildPackages(build_py):
    """Copies packages into a wheel, the inner ones below ``tidemark``.

    An editable install has the repository itself on its path and renames nothing.
    """

    def finalize_options(self) -> None:
        """Name the packages, before the build reads them."""
        super().finalize_options()
        if self.editable_mode:
            return
        self.packages = [_name_in_wheel(each) for each in self.packages or ()]
        self.package_data = {
            _name_in_wheel(package): patterns
            for package, patterns in (self.package_data or {}).items()
        }
        self.package_dir = {
            **(self.package_dir or {}),
            **{f"tidemark.{each}": each for each in INNER},
        }

    def build_module(self, module: str, module_file: str, package: str) -> tuple[str, bool]:
        """Copy one module and rename its imports."""
        copied, was_copied = super().build_module(module, module_file, package)
        if not self.editable_mode:
            path = Path(copied)
            source = path.read_text(encoding="utf-8")
            path.write_text(renamed(source, module_file), encoding="utf-8")
        return copied, was_copied


setup(
    ext_modules=extensions,
    cmdclass={"build_py": BuildPackages},
    options={"build_ext": CYTHON},
)
