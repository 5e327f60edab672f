"""A package to start from: `osmosis plugins new NAME --framework | --backend`.

The folders beside this file are such packages for the name `acme`; they are copied with the name
replaced, in files and in file names. What they write passes its own tests.
"""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

from osmosis_core.errors import ConfigError
from osmosis_core.plugins import get_plugins

_TEMPLATES = Path(__file__).parent
_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")


def create_plugin(
    name: str, parent: Path, *, framework: bool = False, backend: bool = False
) -> str:
    """Write `osmosis-<name>` into a new folder of that name; returns what to do next.

    Args:
        name: of the framework or backend, as users type it; lower case, may hold hyphens.
        parent: where the folder is made; it is created when missing.
        framework: an adapter of a framework is wanted.
        backend: a backend is wanted; one of the two.

    Raises:
        ConfigError: no kind or both, a bad or taken name, there is a file or folder of that name,
            or none can be made there.
    """
    if framework == backend:
        raise ConfigError("say what the plugin offers: either --framework or --backend")
    if not _NAME.fullmatch(name):
        wanted = "lower-case letters, digits and single hyphens, a letter first"
        raise ConfigError(f"{name!r} is no name for a plugin; use {wanted}, such as my-agents")
    package = f"osmosis_{name.replace('-', '_')}"
    _refuse_taken(name, package)
    folder = parent / f"osmosis-{name}"
    if folder.exists():
        raise ConfigError(f"{folder} exists; take another name, or --dir PATH for another place")
    try:
        _write(_TEMPLATES / ("framework" if framework else "backend"), folder, name, package)
    except OSError as error:
        reason = f"cannot write {folder}: {error.strerror}"
        raise ConfigError(f"{reason}; name a folder to write in with --dir PATH") from error
    return (
        f"wrote {folder}; it runs as it is:\n"
        f"  cd {folder} && pip install -e '.[test]' && pytest\n"
        "its README.md says what to replace"
    )


def _refuse_taken(name: str, package: str) -> None:
    found = get_plugins()
    taken = {record.name: record.distribution for record in found.records}
    for record in found.records:
        for offered in record.offers.values():
            taken |= dict.fromkeys(offered, record.distribution)
    if name in taken:
        raise ConfigError(f"the name {name!r} is taken by {taken[name]}; choose another")
    if importlib.util.find_spec(package) is not None:
        raise ConfigError(f"a package {package} is installed already; choose another name")


def _write(template: Path, folder: Path, name: str, package: str) -> None:
    camel = "".join(word.capitalize() for word in name.split("-"))
    words = {"osmosis_acme": package, "Acme": camel, "acme": name}
    for source in sorted(template.rglob("*")):
        if source.is_file() and source.suffix != ".pyc":
            target = folder / _replaced(str(source.relative_to(template)), words)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(_replaced(source.read_text("utf-8"), words), "utf-8")


def _replaced(text: str, words: dict[str, str]) -> str:
    return re.sub("|".join(words), lambda found: words[found[0]], text)
