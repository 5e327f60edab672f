import json
import math
from pathlib import Path
from typing import Any

import pytest

from osmosis_core import (
    ConfigError,
    ExecutionResult,
    PolicyCall,
    RolloutError,
    RolloutErrorCategory,
    RolloutSample,
    RolloutStatus,
)
from osmosis_eval.datasets import Row
from osmosis_eval.results import (
    ResultFiles,
    check_unused,
    create_directory,
    redactor,
    run_name,
    without_secrets,
)
from osmosis_eval.runner import Outcome

KEY = 'sk-"secret"\\key'


def outcome(message: str | None = None, **sample: Any) -> Outcome:
    status = RolloutStatus.FAILURE if message else RolloutStatus.SUCCESS
    category = RolloutErrorCategory.AGENT_ERROR if message else None
    samples = {"main": RolloutSample(id="main", reward=0.5, **sample)}
    result = ExecutionResult(status, samples, message, category)
    return Outcome(Row(4, 9, []), 1, "x-row-4-run-1", result, 0.25)


def written(path: Path, *outcomes: Outcome, key: str | None = None) -> tuple[list[Any], list[Any]]:
    with ResultFiles(path, redactor(key)) as files:
        for one in outcomes:
            files.append(one)
        texts = [(path / f"{name}.jsonl").read_text() for name in ("results", "samples")]
    results, samples = ([json.loads(line) for line in text.splitlines()] for text in texts)
    return results, samples


def test_lines_are_on_disk_before_the_files_are_closed(tmp_path: Path) -> None:
    usage = {"prompt_tokens": 7, "completion_tokens": 2}
    call = PolicyCall("c", "r", "main", 0, {"messages": []}, 0.0, usage=usage)
    results, samples = written(tmp_path, outcome(calls=[call]))
    assert results == [
        {
            "row_index": 4,
            "run_index": 1,
            "rollout_id": "x-row-4-run-1",
            "status": "success",
            "rewards": {"main": 0.5},
            "err_message": None,
            "err_category": None,
            "calls": 1,
            "tree": [{"sample": "main", "calls": [0], "started": []}],
            "tokens": {"prompt": 7, "completion": 2},
            "duration_sec": 0.25,
        }
    ]
    assert samples[0]["rollout_id"] == "x-row-4-run-1"
    assert samples[0]["samples"]["main"]["calls"][0]["usage"] == usage


def test_failure_says_why(tmp_path: Path) -> None:
    results, _ = written(tmp_path, outcome("two\nlines"))
    assert (results[0]["err_message"], results[0]["err_category"]) == ("two\nlines", "agent_error")


def test_objects_without_json_form_leave_their_type(tmp_path: Path) -> None:
    endless: list[Any] = []
    endless.append(endless)
    messages = [{"content": object(), "set": (1, {2}), "e": endless, "n": math.nan}]
    _, samples = written(tmp_path, outcome(messages=messages))
    message = samples[0]["samples"]["main"]["messages"][0]
    assert (message["content"], message["set"], message["n"]) == ("<object>", [1, "<set>"], None)


def test_non_finite_numbers_are_null(tmp_path: Path) -> None:
    call = PolicyCall("c", "r", "main", 0, {}, 0.0, logprobs=[-math.inf, -0.5])
    _, samples = written(tmp_path, outcome(calls=[call]))
    assert samples[0]["samples"]["main"]["calls"][0]["logprobs"] == [None, -0.5]


def test_lone_surrogates_are_written_as_escapes(tmp_path: Path) -> None:
    text = "\ud83d é \u2028"
    results, samples = written(tmp_path, outcome(text, messages=[{"content": text}]))
    assert results[0]["err_message"] == text
    assert samples[0]["samples"]["main"]["messages"][0]["content"] == text


def test_key_is_cut_out_of_every_file(tmp_path: Path) -> None:
    leaky = outcome(f"401 for {KEY}", messages=[{"content": KEY}])
    redact = redactor(KEY)
    with ResultFiles(tmp_path, redact) as files:
        files.append(leaky)
        files.write_summary({"errors": [without_secrets(leaky, redact).result.err_message]})
    for path in tmp_path.iterdir():
        assert "secret" not in path.read_text()
        assert "***" in path.read_text()


def test_short_key_does_not_spoil_other_words(tmp_path: Path) -> None:
    results, _ = written(tmp_path, outcome("a cat"), key="a")
    assert results[0]["err_message"] == "a cat"


@pytest.mark.parametrize("name", ["results.jsonl", "samples.jsonl", "summary.json"])
def test_used_directory_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("keep")
    for refuse in (check_unused, lambda path: create_directory(path, "n")):
        with pytest.raises(ConfigError, match=f"has a {name} already; choose another directory"):
            refuse(tmp_path)
    assert (tmp_path / name).read_text() == "keep"


def test_directory_with_other_files_may_be_used(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("x")
    assert create_directory(tmp_path, "n") == tmp_path


def test_default_directories_never_meet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names = [create_directory(None, "n").as_posix() for _ in range(3)]
    assert names == [f".osmosis/evals/n{suffix}" for suffix in ("", "-2", "-3")]


def test_directory_below_a_file_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(ConfigError, match=r"output directory '.*/file/out': Not a directory"):
        create_directory(tmp_path / "file" / "out", "n")


def test_full_disk_is_a_rollout_error(tmp_path: Path) -> None:
    (tmp_path / "samples.jsonl").symlink_to("/dev/full")
    with pytest.raises(ConfigError, match="File exists"):
        ResultFiles(tmp_path, redactor(None))
    files = ResultFiles(tmp_path / "..", redactor(None))
    (files.directory / "summary.json.part").symlink_to("/dev/full")
    with files, pytest.raises(RolloutError, match=r"results cannot be written to .*No space left"):
        files.write_summary({})


@pytest.mark.parametrize(
    ("name", "start"),
    [("Answer", "Answer-2"), ("a b/ü:c", "a-b-c-2"), ("../..", "eval-2"), ("x" * 300, "x" * 96)],
)
def test_run_name_is_safe_for_paths(name: str, start: str) -> None:
    assert run_name(name).startswith(start)
    assert run_name(name).endswith("Z")
