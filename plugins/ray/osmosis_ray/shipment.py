"""A program on its way to workers: imported there where the same source is, else sent whole."""

from __future__ import annotations

import hashlib
import importlib.util
import site
import sys
import sysconfig
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from osmosis_core import BaseConfig, ConfigError
from osmosis_core.discovery import load_program
from osmosis_core.errors import describe
from osmosis_core.execution import Program
from osmosis_ray.untyped import cloudpickle


@dataclass(frozen=True, slots=True)
class Shipment:
    """What a worker makes its Program of."""

    by_reference: bytes
    """Pickled arguments of `load_program`; classes by the names of their modules."""
    by_value: bytes | None
    """The same with the user's modules in it; None where there are none, or they do not pickle."""
    sources: dict[str, str] = field(default_factory=dict[str, str])
    """The user's modules, with the SHA-256 of their files."""
    path: list[str] = field(default_factory=list[str])
    """Where the host finds modules, but for those of its installation."""
    problem: str = ""
    """Why there is no `by_value`."""

    def load(self) -> Program:
        """The program, in a worker; what user code raises on import is raised."""
        here = [entry for entry in self.path if Path(entry).is_dir()]
        sys.path[:] = here + [entry for entry in sys.path if entry not in here]
        other = [name for name, digest in self.sources.items() if _digest_of(name) != digest]
        if not other:
            return load_program(*cloudpickle.loads(self.by_reference))
        if self.by_value is None:
            raise ConfigError(
                f"module {other[0]!r} is not on this node as it is on the host, and cannot be sent "
                f"there: {self.problem}; give runtime_env={{'working_dir': ...}}"
            )
        return load_program(*cloudpickle.loads(self.by_value))


def pack_program(program: Program) -> Shipment:
    """Make a program ready to travel.

    Raises:
        ConfigError: its configs or classes cannot be pickled.
    """
    parts = [part for part in _parts(program) if part is not None]
    modules = _own_modules([part if isinstance(part, type) else type(part) for part in parts])
    arguments = _arguments(program, modules)
    try:
        by_reference: bytes = cloudpickle.dumps(arguments)
    except Exception as error:  # boundary: what users put in a config raises anything
        raise ConfigError(
            f"{program.workflow.__name__} cannot be sent to Ray workers: {describe(error)}; keep "
            "locks, clients and open files out of configs, or name the config in its module"
        ) from error
    by_value, problem = _by_value(program, modules) if modules else (None, "")
    sources = {module.__name__: _digest(module.__file__) for module in modules}
    path = [str(Path(entry).absolute()) for entry in sys.path if not entry.startswith(_LIBRARIES)]
    return Shipment(by_reference, by_value, sources, path, problem)


def _parts(program: Program) -> tuple[Any, ...]:
    return program.workflow, program.workflow_config, program.grader, program.grader_config


def _arguments(program: Program, modules: list[ModuleType]) -> tuple[Any, ...]:
    """Configs that are values of globals are named by them: they may hold what does not pickle."""
    names = {
        id(value): f"{module.__name__}:{name}"
        for module in modules
        for name, value in vars(module).items()
        if isinstance(value, BaseConfig)
    }
    workflow, workflow_config, grader, grader_config = _parts(program)
    workflow_config = names.get(id(workflow_config), workflow_config)
    return workflow, workflow_config, grader, names.get(id(grader_config), grader_config)


def _by_value(program: Program, modules: list[ModuleType]) -> tuple[bytes | None, str]:
    known: set[str] = set(cloudpickle.list_registry_pickle_by_value())
    ours = [module for module in modules if module.__name__ not in known]
    for module in ours:
        cloudpickle.register_pickle_by_value(module)
    try:
        return cloudpickle.dumps(_parts(program)), ""
    except Exception as error:  # boundary: modules hold anything
        return None, describe(error)
    finally:
        for module in ours:
            cloudpickle.unregister_pickle_by_value(module)


def _own_modules(classes: list[type]) -> list[ModuleType]:
    """The loaded modules of the projects that the classes belong to; nothing that is installed."""
    homes = {sys.modules.get(one.__module__) for one in classes}
    roots = {_root(module) for module in homes if module is not None and _is_own(module)}
    return [
        module
        for module in list(sys.modules.values())
        if _is_own(module) and _root(module) in roots
    ]


def _root(module: ModuleType) -> Path:
    """The folder from which a module is imported."""
    assert module.__file__ is not None
    file = Path(module.__file__)
    above = file.parents[module.__name__.count(".") :]
    return above[file.name == "__init__.py"]


def _is_own(module: Any) -> bool:
    name, file = getattr(module, "__name__", ""), getattr(module, "__file__", None)
    if (
        not isinstance(name, str)
        or not isinstance(file, str)
        or name in ("__main__", "__mp_main__")
    ):
        return False
    if name.partition(".")[0] == "osmosis_core" or not file.endswith(".py"):
        return False
    return not file.startswith(_LIBRARIES)


_LIBRARIES = (
    *site.getsitepackages(),
    site.getusersitepackages(),
    sysconfig.get_path("stdlib"),
)


def _digest_of(name: str) -> str | None:
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return None
    return _digest(spec.origin) if spec is not None and spec.origin else None


def _digest(file: str | None) -> str:
    try:
        return hashlib.sha256(Path(file or "").read_bytes()).hexdigest()
    except OSError:
        return ""
