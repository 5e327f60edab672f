"""Find what an entrypoint offers: exactly one workflow, at most one grader and their configs."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
import traceback
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
    count only when it defines none of its own.

    Raises:
        ConfigError: nothing is there, or too much; the message names the candidates.
        UserCodeError: the module raised while it was imported.
    """
    module, attribute = load_target(target)
    if attribute:
        workflow = _attribute(module, attribute, target)
        _check_class(repr(target), workflow, AgentWorkflow)
    else:
        workflow = _only_class(module, AgentWorkflow, target)
        if workflow is None:
            raise ConfigError(
                f"no concrete AgentWorkflow subclass in {target!r}{_abstract_ones(module)}; "
                "define one with async run(), or name it: module:attr"
            )
    return Entrypoint(
        target,
        module,
        Program(
            workflow,
            _only_instance(module, AgentWorkflowConfig, target),
            _only_class(module, Grader, target),
            _only_instance(module, GraderConfig, target),
        ),
    )


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
        raise ConfigError(
            f"{name!r} is neither a module nor a file; give module, module:attr or a path"
        )
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and (name == error.name or name.startswith(error.name + ".")):
            file = Path(*name.split("."))
            hint = f"; did you mean {file}.py?" if file.with_suffix(".py").exists() else ""
            raise ConfigError(f"no module {name!r} on the path or in {Path.cwd()}{hint}") from error
        raise _user_code_error(name, error) from error
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # boundary: user code raises anything
        raise _user_code_error(name, error) from error


def _import_file(path: Path) -> ModuleType:
    file = path.resolve()
    if not file.is_file():
        known = [p.name for p in file.parent.glob("*.py")] if file.parent.is_dir() else []
        raise ConfigError(f"no file {str(path)!r}{nearest(file.name, known)}")
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
    try:
        spec.loader.exec_module(module)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # boundary: user code raises anything
        del sys.modules[name]
        raise _user_code_error(file.name, error) from error
    return module


def _user_code_error(target: str, error: BaseException) -> UserCodeError:
    tb = error.__traceback__
    while tb is not None and _is_ours(tb.tb_frame.f_code.co_filename):
        tb = tb.tb_next
    text = "".join(traceback.format_exception(type(error), error, tb))
    return UserCodeError(
        f"{target!r} cannot be imported: {type(error).__name__}: {describe(error)}", text
    )


def _is_ours(filename: str) -> bool:
    return filename in (__file__, importlib.__file__) or filename.startswith("<frozen importlib")


def load_program(
    workflow: object,
    workflow_config: object = None,
    grader: object = None,
    grader_config: object = None,
) -> Program:
    """Resolve a backend's arguments, each an object or `"module:attr"`, and check their kinds."""
    program: Any = Program(
        _resolve("workflow", workflow),
        _resolve("workflow_config", workflow_config),
        _resolve("grader", grader),
        _resolve("grader_config", grader_config),
    )
    _check_class("workflow", program.workflow, AgentWorkflow)
    if program.grader is not None:
        _check_class("grader", program.grader, Grader)
    for name, config, kind in (
        ("workflow_config", program.workflow_config, AgentWorkflowConfig),
        ("grader_config", program.grader_config, GraderConfig),
    ):
        if config is not None and not isinstance(config, kind):
            raise ConfigError(f"{name} is {_what(config)}; give an instance of {kind.__name__}")
    return program


def _resolve(name: str, value: Any) -> Any:
    if not isinstance(value, str):
        return value
    if not _names_attribute(value):
        raise ConfigError(f"{name}={value!r} is not an import path; write 'module:attr'")
    module, attribute = load_target(value)
    return _attribute(module, attribute, value)


def _attribute(module: ModuleType, attribute: str, target: str) -> Any:
    if not hasattr(module, attribute):
        hint = nearest(attribute, [name for name in vars(module) if not name.startswith("_")])
        raise ConfigError(f"{target!r}: {module.__name__} has no {attribute!r}{hint}")
    return getattr(module, attribute)


def _check_class(name: str, value: object, base: type) -> None:
    if _is_concrete(value, base):
        return
    if isinstance(value, type) and issubclass(value, base):
        missing = ", ".join(sorted(getattr(value, "__abstractmethods__", ())))
        raise ConfigError(f"{name} {value.__name__} is abstract; implement {missing}")
    hint = "pass the class, not an instance" if isinstance(value, base) else "give a subclass"
    raise ConfigError(f"{name} is {_what(value)}; {hint} of {base.__name__}")


def _is_concrete(value: object, base: type) -> bool:
    return isinstance(value, type) and issubclass(value, base) and not inspect.isabstract(value)


def _only_class(module: ModuleType, base: type, target: str) -> Any:
    found = {v: k for k, v in vars(module).items() if _is_concrete(v, base)}
    own = {v: k for v, k in found.items() if v.__module__ == module.__name__}
    return _only(own or found, f"{base.__name__} subclass", target)


def _abstract_ones(module: ModuleType) -> str:
    kinds = [v for v in vars(module).values() if isinstance(v, type) and inspect.isabstract(v)]
    own = [v.__name__ for v in kinds if issubclass(v, AgentWorkflow) and v is not AgentWorkflow]
    return f" ({', '.join(own)} has no run())" if own else ""


def _only_instance(module: ModuleType, base: type, target: str) -> Any:
    found = {id(v): (k, v) for k, v in vars(module).items() if isinstance(v, base)}
    key = _only({i: k for i, (k, _) in found.items()}, f"{base.__name__} instance", target)
    return None if key is None else found[key][1]


def _only(found: dict[Any, str], what: str, target: str) -> Any:
    if len(found) > 1:
        names = ", ".join(sorted(found.values()))
        plural = f"{what}es" if what.endswith("s") else f"{what}s"
        raise ConfigError(
            f"several {plural} in {target!r}: {names}; keep one, or name it: module:attr"
        )
    return next(iter(found), None)


def _what(value: object) -> str:
    return f"the class {value.__name__}" if isinstance(value, type) else repr(value)
