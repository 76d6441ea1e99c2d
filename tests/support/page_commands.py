"""Commands of a page of the docs: some are run, the others are compared with the code.

A block that begins with ```` ```sh ```` runs unchanged; a word behind it names its requirement
(``cluster``, ``image``, ``root``; ``groups``: a cluster of groups).
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import click

from tests.support.manifests import Object, containers, of_kind
from tidemark.cli.main import cli

NEEDS: Final = frozenset({"", "cluster", "groups", "image", "root"})
VALUED: Final = frozenset({"-n", "-l", "-L", "-c", "-k", "-f", "--type", "--patch"})
_BLOCK: Final = re.compile(r"^```sh ?(.*)\n((?:.*\n)*?)^```$", re.M)
_INLINE: Final = re.compile(r"`(kubectl [^`…]+)`")
_PATH: Final = re.compile(r"`((?:deploy|tests|docs)/[\w./-]+)`")


class Block(NamedTuple):
    """One block of commands."""

    needs: str
    text: str


def blocks(page: Path) -> list[Block]:
    return [Block(match[1].strip(), match[2]) for match in _BLOCK.finditer(page.read_text())]


def commands(page: Path, needs: str) -> list[str]:
    """Return the lines of the blocks that need this; for a cluster, also the kubectl commands in
    sentences."""
    found = [line for block in blocks(page) if block.needs == needs
             for line in block.text.splitlines() if line.strip()]  # fmt: skip
    if needs == "cluster":
        # A verb alone, as `kubectl diff`, is the name of a command and none to type.
        found += (each for each in _INLINE.findall(page.read_text()) if len(each.split()) > 2)
    return found


def missing_paths(page: Path, root: Path) -> list[str]:
    """Files that the page names and that do not exist; a `*` stands for any name."""
    named = _PATH.findall(page.read_text())
    return [path for path in named if not list(root.glob(path.rstrip("/")))]


def mistakes(line: str, objects: list[Object], root: Path) -> list[str]:
    """Names in a cluster command that no manifest has; objects: those of the applied overlay."""
    words = shlex.split(line)
    if "|" in words:
        words = words[words.index("|") + 1 :]
    if words[0] != "kubectl":
        return [f"{words[0]} is not kubectl"]
    before, _, inside = _cut(words[1:], "--")
    options, plain = _options(before)
    return list(_of_objects(plain, options, objects, root)) + list(_of_inside(inside))


def _cut(words: list[str], at: str) -> tuple[list[str], str, list[str]]:
    if at not in words:
        return words, "", []
    place = words.index(at)
    return words[:place], at, words[place + 1 :]


def _options(words: list[str]) -> tuple[dict[str, str], list[str]]:
    options: dict[str, str] = {}
    plain: list[str] = []
    rest = iter(words)
    for word in rest:
        if word in VALUED:
            options[word] = next(rest)
        elif word.startswith("-"):
            name, _, value = word.partition("=")
            options[name] = value
        else:
            plain.append(word)
    return options, plain


def _of_objects(
    plain: list[str], options: dict[str, str], objects: list[Object], root: Path
) -> Iterator[str]:
    pods: dict[str, set[str]] = {}
    for container in containers(objects):
        pods.setdefault(container.pod, set()).add(container.name)
    names = {
        "statefulset": {each["metadata"]["name"] for each in of_kind(objects, "StatefulSet")},
        "namespace": {"default", *(e["metadata"]["name"] for e in of_kind(objects, "Namespace"))},
        "pod": set(pods),
        "pvc": {f"data-{pod}" for pod in pods},
    }
    if options.get("-n", "tidemark") not in names["namespace"]:
        yield f"there is no namespace {options['-n']}"
    for option in ("-k", "-f"):
        if option in options and not (root / options[option]).exists():
            yield f"there is no {options[option]}"
    if "--patch" in options:
        json.loads(options["--patch"])
    for label in filter(None, options.get("-l", "").split(",")):
        name, _, value = label.partition("=")
        if not (name == "role" and value in ("master", "slave")) and not any(
            each["metadata"].get("labels", {}).get(name) == value for each in objects
        ):
            yield f"no object has the label {label}"
    if plain[0] == "exec":
        if plain[1] not in pods:
            yield f"there is no pod {plain[1]}"
        elif options.get("-c") not in pods[plain[1]]:
            yield f"{plain[1]} has no container {options.get('-c')}"
        return
    for place, word in enumerate(plain):
        kind, slash, name = word.partition("/")
        if kind in names and not slash and place + 1 < len(plain):
            name = plain[place + 1]
        if kind in names and name and "/" not in name and name not in names[kind]:
            yield f"there is no {kind} {name}"


def _of_inside(words: list[str]) -> Iterator[str]:
    """Check that what runs in a container is a command of ours."""
    if not words:
        return
    found: click.Command = cli
    arguments = words[1:]
    if words[0] != "tidemark":
        yield f"there is no {words[0]} in the image"
        return
    while isinstance(found, click.Group):
        name = arguments.pop(0)
        if name not in found.commands:
            yield f"there is no command {name}"
            return
        found = found.commands[name]
    try:
        found.make_context(words[0], list(arguments))
    except click.ClickException as error:
        yield error.format_message()
