"""Decorators that hold reward functions to the published signatures."""

from __future__ import annotations

import functools
import inspect
import math
import numbers
import typing
from collections.abc import Callable, Mapping
from typing import Any

_REWARD = "solution_str: str, ground_truth: str, extra_info: dict = None"
_RUBRIC = "solution_str: str, ground_truth: str | None, extra_info: dict"


def osmosis_reward[F: Callable[..., Any]](func: F) -> F:
    """Mark a reward function, plain or async, and check what it takes and returns.

    A function whose first parameter is `solution_str` must take `solution_str: str`,
    `ground_truth: str` and `extra_info: dict` with a default, and return a number (not a bool);
    further parameters are its own. Any other function is left as it is. A `data_source` that it
    cannot take is not passed on.

    Raises:
        TypeError: the signature is another one, or a call returns no number.
    """
    return _decorated(func, _check_reward, _no_check)


def osmosis_rubric[F: Callable[..., Any]](func: F) -> F:
    """Mark a rubric function; as `osmosis_reward`, but `ground_truth` may be None.

    The arguments are checked in each call too, and `extra_info` needs no default.

    Raises:
        TypeError: the signature, an argument or the result is another one.
    """
    return _decorated(func, _check_rubric, _check_rubric_call)


def _decorated(
    func: Any,
    check: Callable[[str, list[inspect.Parameter], dict[str, Any]], None],
    check_call: Callable[[str, Mapping[str, Any]], None],
) -> Any:
    signature, name = inspect.signature(func), getattr(func, "__name__", repr(func))
    parameters = list(signature.parameters.values())
    is_classic = bool(parameters) and parameters[0].name == "solution_str"
    if is_classic:
        check(name, parameters, _hints(func))
    kinds = {parameter.kind for parameter in parameters}
    takes_source = "data_source" in signature.parameters or inspect.Parameter.VAR_KEYWORD in kinds

    def prepare(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not takes_source:
            kwargs.pop("data_source", None)
        if is_classic:
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            check_call(name, bound.arguments)

    @functools.wraps(func)
    def call(*args: Any, **kwargs: Any) -> Any:
        prepare(args, kwargs)
        result = func(*args, **kwargs)
        return _number(name, result) if is_classic else result

    @functools.wraps(func)
    async def call_async(*args: Any, **kwargs: Any) -> Any:
        prepare(args, kwargs)
        result = await func(*args, **kwargs)
        return _number(name, result) if is_classic else result

    return call_async if inspect.iscoroutinefunction(func) else call


def _hints(func: Any) -> dict[str, Any]:
    try:
        return typing.get_type_hints(func)
    except Exception:  # annotations are user code; those that do not resolve are compared as text
        return dict(inspect.get_annotations(func))


def _check_reward(name: str, given: list[inspect.Parameter], hints: dict[str, Any]) -> None:
    _check_names(name, given, _REWARD)
    for parameter in ("solution_str", "ground_truth"):
        if hints.get(parameter) not in (str, "str"):
            raise TypeError(f"{name}: annotate `{parameter}: str`")
    if not _is_dict(hints.get("extra_info")):
        raise TypeError(f"{name}: annotate `extra_info: dict`")
    if given[2].default is inspect.Parameter.empty:
        raise TypeError(f"{name}: give `extra_info` a default, such as None")


def _check_rubric(name: str, given: list[inspect.Parameter], hints: dict[str, Any]) -> None:
    _check_names(name, given, _RUBRIC)
    if hints.get("solution_str") not in (str, "str"):
        raise TypeError(f"{name}: annotate `solution_str: str`")
    if hints.get("ground_truth") not in (str, "str", str | None, "str | None", "Optional[str]"):
        raise TypeError(f"{name}: annotate `ground_truth: str | None`")
    for parameter in given[:2]:
        if parameter.default is not inspect.Parameter.empty:
            raise TypeError(f"{name}: `{parameter.name}` takes no default")


def _check_names(name: str, given: list[inspect.Parameter], wanted: str) -> None:
    if len(given) < 3:
        raise TypeError(f"{name} has {len(given)} parameters; write {name}({wanted}, **kwargs)")
    names = [parameter.name for parameter in given[:3]]
    if names != ["solution_str", "ground_truth", "extra_info"]:
        raise TypeError(f"{name} begins with {', '.join(names)}; write {name}({wanted}, **kwargs)")


def _is_dict(hint: Any) -> bool:
    options = [option for option in typing.get_args(hint) if option is not type(None)]
    if typing.get_origin(hint) is not dict and len(options) == 1:
        return _is_dict(options[0])
    return hint is dict or typing.get_origin(hint) is dict or str(hint).startswith("dict")


def _no_check(name: str, arguments: Mapping[str, Any]) -> None:
    """A reward's arguments are its own business."""


def _check_rubric_call(name: str, arguments: Mapping[str, Any]) -> None:
    solution, truth = arguments["solution_str"], arguments["ground_truth"]
    if not isinstance(solution, str):
        raise TypeError(f"{name}: solution_str is {type(solution).__name__}; give a str")
    if truth is not None and not isinstance(truth, str):
        raise TypeError(f"{name}: ground_truth is {type(truth).__name__}; give a str or None")


def _number(name: str, result: Any) -> float:
    if isinstance(result, bool) or not isinstance(result, numbers.Real):
        raise TypeError(f"{name} returned {type(result).__name__}; return a float")
    if not math.isfinite(result):
        raise ValueError(f"{name} returned {result!r}; return a finite number")
    return float(result)
