"""Strict validation of rendered objects: a field unknown to a Kubernetes version is a mistake.

The schemas are those of the three newest versions in ``kubernetes-validate``. Kinds that are not
part of Kubernetes are validated by ``custom``.
"""

from __future__ import annotations

import importlib
from typing import Any, Final

from deploy.lint import custom

VERSIONS: Final = 3


class NoSchemas(Exception):
    """``kubernetes-validate`` is not installed, or has too few versions."""


def newest_versions() -> list[str]:
    """Return the newest versions that have schemas, as ``1.37``. Raises NoSchemas."""
    utils = _library()
    versions = sorted(
        {utils.major_minor(version) for version in utils.all_versions()},
        key=lambda version: [int(number) for number in version.split(".")],
    )
    if len(versions) < VERSIONS:
        raise NoSchemas(f"kubernetes-validate knows only {versions}")
    return versions[-VERSIONS:]


def mistakes(document: dict[str, Any], version: str) -> list[str]:
    """Return the mistakes in one object for that version, if any. Raises NoSchemas."""
    if document["apiVersion"] in custom.API_VERSIONS:
        return custom.mistakes(document)
    utils = _library()
    try:
        utils.validate(document, version, strict=True)
    except utils.ValidationError as error:
        return [f"{'.'.join(map(str, error.path)) or 'object'}: {error.message}"]
    except utils.SchemaNotFoundError as error:
        return [str(error.message)]
    return []


def _library() -> Any:
    try:
        return importlib.import_module("kubernetes_validate.utils")
    except ImportError as error:
        raise NoSchemas(f"kubernetes-validate is not installed: {error}") from error
