"""How workflow, grader and configs get to a worker: classes by name, configs by value or name."""

from __future__ import annotations

import importlib
import importlib.util
import pickle
import sys
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from types import ModuleType
from typing import Any

from osmosis_core import ConfigError
from osmosis_core.errors import one_line
from osmosis_core.execution import Program

_MAIN = "__mp_main__"
"""Name under which a worker runs the host's script, so that its `__main__` guard holds."""


@dataclass(frozen=True, slots=True)
class Name:
    """Something at module level."""

    module: str
    path: str

    def find(self) -> Any:
        """The thing itself, in a process where its module is loaded."""
        return attrgetter(self.path)(sys.modules[self.module])


@dataclass(slots=True)
class Parcel:
    """A program as it travels."""

    sys_path: list[str] = field(default_factory=lambda: list(sys.path))
    argv: list[str] = field(default_factory=lambda: list(sys.argv))
    modules: dict[str, str | None] = field(default_factory=dict[str, str | None])
    """Files of the modules to load first; None where the name suffices."""
    parts: dict[str, Name | bytes] = field(default_factory=dict[str, Name | bytes])
    """Of the Program, each by name or pickled."""

    @classmethod
    def of(cls, program: Program) -> Parcel:
        """Pack a program.

        Raises:
            ConfigError: a part of it can neither be named nor pickled; the message says why.
        """
        parcel = cls()
        parcel._pack_class("workflow", program.workflow)
        parcel._pack_class("grader", program.grader)
        parcel._pack_config("workflow_config", program.workflow_config, program.workflow)
        parcel._pack_config("grader_config", program.grader_config, program.grader)
        return parcel

    def open(self) -> Program:
        """The program, in a worker; raises what the user's modules raise."""
        sys.argv[:] = self.argv
        for name, file in self.modules.items():
            _load(name, file)
        parts: dict[str, Any] = {
            name: part.find() if isinstance(part, Name) else pickle.loads(part)
            for name, part in self.parts.items()
        }
        return Program(**parts)

    def _pack_class(self, role: str, kind: type[Any] | None) -> None:
        if kind is None:
            return
        what = f"{role} {kind.__qualname__}"
        if "<locals>" in kind.__qualname__:
            mend = "define it at the top of a module"
            raise ConfigError(f"{what} is defined in a function, where no worker finds it; {mend}")
        name = Name(kind.__module__, kind.__qualname__)
        self._add_module(what, name.module)
        try:
            is_there = name.find() is kind
        except AttributeError:
            is_there = False
        if not is_there:
            where = f"{name.module}.{name.path}"
            raise ConfigError(f"{what} is not what {where} names, so that no worker finds it")
        self.parts[role] = name

    def _pack_config(self, role: str, config: object, owner: type[Any] | None) -> None:
        if config is None or owner is None:
            return
        self._add_module(f"{role} {type(config).__qualname__}", type(config).__module__)
        try:
            self.parts[role] = pickle.dumps(config)
        except Exception as error:  # what users put into a config raises anything
            found = vars(sys.modules[owner.__module__]).items()
            names = [name for name, value in found if value is config]
            if not names:
                why = one_line(f"{type(error).__name__}: {error}", 200)
                mend = f"define it at module level, beside {owner.__name__}"
                raise ConfigError(f"{role} cannot be sent to a worker ({why}); {mend}") from error
            self.parts[role] = Name(owner.__module__, names[0])

    def _add_module(self, what: str, name: str) -> None:
        module = sys.modules.get(name)
        file = getattr(module, "__file__", None)
        if name == "__main__" and file is None:
            raise ConfigError(f"{what} is defined in an interactive session; put it into a file")
        self.modules[name] = file and str(Path(file).resolve())


def _load(name: str, file: str | None) -> None:
    if name == "__main__":
        assert file is not None
        sys.modules["__main__"] = _execute(_MAIN, file)
    elif file is None or _origin(name) == file:
        importlib.import_module(name)
    else:
        _execute(name, file)


def _origin(name: str) -> str | None:
    """The file that importing a name would run."""
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return None
    return str(Path(spec.origin).resolve()) if spec and spec.origin else None


def _execute(name: str, file: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ImportError(f"{file} is not a Python file")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
