"""Find what an entrypoint offers: exactly one workflow, at most one grader and their configs."""

import importlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from osmosis_core.config import AgentWorkflowConfig, GraderConfig
from osmosis_core.errors import ConfigError, describe, nearest
from osmosis_core.execution import Program
from osmosis_core.grader import Grader
from osmosis_core.workflow import AgentWorkflow


class UserCodeError(ConfigError):
    """The user's module raised while it was imported; `user_traceback` is their part of it."""

    def __init__(self, message: str, user_traceback: str) -> None:
        super().__init__(message)
        self.user_traceback = user_traceback


@dataclass(frozen=True, slots=True)
class Entrypoint:
    """A loaded TARGET."""

    target: str
    module: ModuleType
    program: Program

    @property
    def name(self) -> str:
        """The config's name, else the workflow's class name."""
        config = self.program.workflow_config
        return config.name.strip() if config else self.program.workflow.__name__


def load_entrypoint(target: str) -> Entrypoint:
    """Load TARGET: `module`, `module:attr`, or a path to a file, with `:attr` or without.

    The module must hold exactly one concrete AgentWorkflow (or `attr` names it), at most one
    concrete Grader, and at most one instance of each config. Classes that it merely imports
    count only when it defines none of its own. What is no workflow may be made one by a plugin
    (`osmosis_adapt_target`).

    Raises:
        ConfigError: nothing is there, or too much; the message names the candidates.
        UserCodeError: the module raised while it was imported.
    """
    from osmosis_core.plugins import get_plugins

    module, attribute = load_target(target)
    found = _only_class(module, AgentWorkflow, target) if not attribute else None
    named = _attribute(module, attribute, target) if attribute else found or module
    program = None if _is_workflow(named) else get_plugins().adapt_target(named)
    if program is None and named is module:
        raise ConfigError(
            f"no concrete AgentWorkflow subclass in {target!r}{_abstract_ones(module)}; "
            "define one with async run(), or name it: module:attr"
        )
    program = program or Program(_concrete(repr(target), named, AgentWorkflow))
    config = program.workflow_config or _only_instance(module, AgentWorkflowConfig, target)
    grader = _only_class(module, Grader, target), _only_instance(module, GraderConfig, target)
    return Entrypoint(target, module, Program(program.workflow, config, *grader, program.check))


def _is_workflow(value: Any) -> bool:
    return isinstance(value, type) and issubclass(value, AgentWorkflow)


def load_target(target: str) -> tuple[ModuleType, str]:
    """Import the module of a TARGET and return it with the attribute that TARGET names, or ""."""
    path, _, attribute = target.rpartition(":") if _names_attribute(target) else (target, "", "")
    if path.endswith(".py") or "/" in path:
        return _import_file(Path(path)), attribute
    return _import_module(path), attribute


def _names_attribute(target: str) -> bool:
    return ":" in target and target.rpartition(":")[2].isidentifier()


def _import_module(name: str) -> ModuleType:
    if not all(part.isidentifier() for part in name.split(".")):
        known = "give module, module:attr or a path"
        raise ConfigError(f"{name!r} is neither a module nor a file; {known}")
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        with _user_code(name):
            return importlib.import_module(name)
    except UserCodeError as error:
        cause = error.__cause__
        if not (isinstance(cause, ModuleNotFoundError) and f"{name}.".startswith(f"{cause.name}.")):
            raise
        file = Path(*name.split(".")).with_suffix(".py")
        hint = f"; did you mean {file}?" if file.exists() else ""
        raise ConfigError(f"no module {name!r} on the path or in {Path.cwd()}{hint}") from cause


def _import_file(path: Path) -> ModuleType:
    file = path.resolve()
    if not file.is_file():
        what = f"{str(path)!r} is a folder; name a file in it" if file.is_dir() else None
        known = (neighbour.name for neighbour in file.parent.glob("*.py"))
        raise ConfigError(what or f"no file {str(path)!r}{nearest(file.name, known)}")
    root, parts = file.parent, [file.stem]
    while (root / "__init__.py").exists():
        root, parts = root.parent, [root.name, *parts]
    if str(root) not in sys.path:
        sys.path.insert(0, str(root))
    name = ".".join(parts)
    loaded = sys.modules.get(name)
    if loaded is not None and getattr(loaded, "__file__", None) == str(file):
        return loaded
    package = sys.modules.get(parts[0])
    folders = [Path(folder).resolve() for folder in getattr(package, "__path__", ())]
    is_ours = package is None or root / parts[0] in folders
    if len(parts) > 1 and loaded is None and is_ours:
        return _import_module(name)
    return _execute_file(file, name if package is None else f"_osmosis_entrypoint_{file.stem}")


def _execute_file(file: Path, name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{str(file)!r} is not a Python file; give a path that ends in .py")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    with _user_code(file.name):
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
    return module


@contextmanager
def _user_code(target: str) -> Generator[None]:
    try:
        yield
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # boundary: user code raises anything
        tb = error.__traceback__
        while tb is not None and _is_ours(tb.tb_frame.f_code.co_filename):
            tb = tb.tb_next
        text = "".join(traceback.format_exception(type(error), error, tb))
        what = f"{type(error).__name__}: {describe(error)}"
        raise UserCodeError(f"{target!r} cannot be imported: {what}", text) from error


def _is_ours(filename: str) -> bool:
    return filename in (__file__, importlib.__file__) or filename.startswith("<frozen importlib")


def load_program(
    workflow: object,
    workflow_config: object = None,
    grader: object = None,
    grader_config: object = None,
) -> Program:
    """Resolve a backend's arguments, each an object or `"module:attr"`, and check their kinds."""
    return Program(
        _concrete("workflow", _resolved("workflow", workflow), AgentWorkflow),
        _instance("workflow_config", workflow_config, AgentWorkflowConfig),
        None if grader is None else _concrete("grader", _resolved("grader", grader), Grader),
        _instance("grader_config", grader_config, GraderConfig),
    )


def _resolved(name: str, value: object) -> object:
    if not isinstance(value, str):
        return value
    if not _names_attribute(value):
        raise ConfigError(f"{name}={value!r} is not an import path; write 'module:attr'")
    return _attribute(*load_target(value), value)


def _instance[T](name: str, value: object, kind: type[T]) -> T | None:
    config = _resolved(name, value)
    if config is None or isinstance(config, kind):
        return config
    raise ConfigError(f"{name} is {_what(config)}; give an instance of {kind.__name__}")


def _attribute(module: ModuleType, attribute: str, target: str) -> Any:
    if not hasattr(module, attribute):
        hint = nearest(attribute, [name for name in vars(module) if not name.startswith("_")])
        raise ConfigError(f"{target!r}: {module.__name__} has no {attribute!r}{hint}")
    return getattr(module, attribute)


def _concrete[T](name: str, value: object, base: type[T]) -> type[T]:
    if isinstance(value, type) and issubclass(value, base):
        if missing := ", ".join(sorted(getattr(value, "__abstractmethods__", ()))):
            raise ConfigError(f"{name} {value.__name__} is abstract; implement {missing}")
        return value
    hint = "pass the class, not an instance" if isinstance(value, base) else "give a subclass"
    raise ConfigError(f"{name} is {_what(value)}; {hint} of {base.__name__}")


def _only_class[T](module: ModuleType, base: type[T], target: str) -> type[T] | None:
    found = {
        name: value
        for name, value in vars(module).items()
        if isinstance(value, type) and issubclass(value, base) and not inspect.isabstract(value)
    }
    own = {name: value for name, value in found.items() if value.__module__ == module.__name__}
    return _only(own or found, f"{base.__name__} subclasses", target)


def _abstract_ones(module: ModuleType) -> str:
    kinds = [v for v in vars(module).values() if isinstance(v, type) and inspect.isabstract(v)]
    own = [v.__name__ for v in kinds if issubclass(v, AgentWorkflow) and v is not AgentWorkflow]
    return f" ({', '.join(own)} has no run())" if own else ""


def _only_instance[T](module: ModuleType, base: type[T], target: str) -> T | None:
    found = {name: value for name, value in vars(module).items() if isinstance(value, base)}
    return _only(found, f"{base.__name__} instances", target)


def _only[T](found: dict[str, T], what: str, target: str) -> T | None:
    unique = {id(value): name for name, value in found.items()}
    if len(unique) > 1:
        names = ", ".join(sorted(unique.values()))
        raise ConfigError(f"several {what} in {target!r}: {names}; keep one or name module:attr")
    return next(iter(found.values()), None)


def _what(value: Any) -> str:
    return f"the class {value.__name__}" if isinstance(value, type) else repr(value)
