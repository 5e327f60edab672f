import csv
import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from osmosis_core import ConfigError
from osmosis_eval.datasets import Row, read_rows, select_rows

USER = {"role": "user", "content": "q"}


def written(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def jsonl(path: Path, *rows: Any) -> Path:
    return written(path / "rows.jsonl", "\n".join(map(json.dumps, rows)))


def only(path: Path) -> Row:
    rows = read_rows(path)
    assert len(rows) == 1
    return rows[0]


def test_jsonl_row_is_system_then_user_and_a_label(tmp_path: Path) -> None:
    row = {"user_prompt": "q", "system_prompt": "s", "ground_truth": "4"}
    assert only(jsonl(tmp_path, row)) == Row(0, 1, [{"role": "system", "content": "s"}, USER], "4")


def test_csv_row_is_the_same_as_a_jsonl_row(tmp_path: Path) -> None:
    path = written(tmp_path / "r.csv", "user_prompt,system_prompt,ground_truth\nq,s,4\n")
    assert only(path) == Row(0, 2, [{"role": "system", "content": "s"}, USER], "4")


def test_label_is_an_alias_and_ground_truth_wins(tmp_path: Path) -> None:
    assert only(jsonl(tmp_path, {"user_prompt": "q", "label": "a"})).label == "a"
    both = {"user_prompt": "q", "label": "a", "ground_truth": "g"}
    assert only(jsonl(tmp_path, both)).label == "g"


def test_values_become_text(tmp_path: Path) -> None:
    row = only(jsonl(tmp_path, {"user_prompt": 7, "ground_truth": True, "system_prompt": None}))
    assert (row.prompt, row.label) == ([{"role": "user", "content": "7"}], "True")


def test_zero_is_a_value(tmp_path: Path) -> None:
    assert only(jsonl(tmp_path, {"user_prompt": "q", "ground_truth": 0})).label == "0"


def test_other_columns_are_ignored(tmp_path: Path) -> None:
    row = only(jsonl(tmp_path, {"user_prompt": "q", "ground_truth": "4", "id": [1]}))
    assert row == Row(0, 1, [USER], "4")


def test_blank_jsonl_lines_are_skipped_and_lines_stay_true(tmp_path: Path) -> None:
    line = '{"user_prompt": "q", "ground_truth": "4"}'
    rows = read_rows(written(tmp_path / "r.jsonl", f"\n{line}\n  \n\n{line}\n"))
    assert [(row.index, row.line) for row in rows] == [(0, 2), (1, 5)]


@pytest.mark.parametrize("name", ["R.JSONL", "r.Jsonl"])
def test_extension_is_case_insensitive(tmp_path: Path, name: str) -> None:
    assert only(written(tmp_path / name, '{"user_prompt": "q", "label": "4"}'))


@pytest.mark.parametrize(
    ("name", "text"),
    [("r.jsonl", '{"user_prompt": "q", "label": "4"}'), ("r.csv", "user_prompt,label\r\nq,4\r\n")],
)
def test_byte_order_mark_is_tolerated(tmp_path: Path, name: str, text: str) -> None:
    assert only(written(tmp_path / name, b"\xef\xbb\xbf" + text.encode())).prompt == [USER]


@pytest.mark.parametrize("value", [{"a": 1}, '{"a": 1}', ' {"a": 1} '])
def test_metadata_is_an_object_or_text_that_holds_one(tmp_path: Path, value: Any) -> None:
    assert only(jsonl(tmp_path, {"metadata": value})) == Row(0, 1, [], None, {"a": 1})


@pytest.mark.parametrize("value", [None, "", "  ", {}, "{}"])
def test_blank_metadata_is_absent(tmp_path: Path, value: Any) -> None:
    row = {"user_prompt": "q", "ground_truth": "4", "metadata": value}
    assert only(jsonl(tmp_path, row)).metadata is None


def test_prompt_without_label_is_enough_where_there_is_a_metadata_column(tmp_path: Path) -> None:
    assert only(jsonl(tmp_path, {"user_prompt": "q", "metadata": {}})) == Row(0, 1, [USER])


def test_metadata_mode_is_chosen_row_by_row(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"rows\.jsonl:2: no column user_prompt"):
        read_rows(jsonl(tmp_path, {"metadata": {"a": 1}}, {"label": "4"}))


def test_messages_replace_the_prompt_columns(tmp_path: Path) -> None:
    chat = [{"role": "system", "content": "s"}, USER, {"role": "assistant", "content": "a"}]
    row = {"messages": chat, "user_prompt": "unused", "label": "4"}
    assert only(jsonl(tmp_path, row)) == Row(0, 1, chat, "4")


def test_messages_in_csv_are_json_text(tmp_path: Path) -> None:
    path = tmp_path / "r.csv"
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([["messages", "label"], [json.dumps([USER]), "4"]])
    assert only(path) == Row(0, 2, [USER], "4")


def test_blank_messages_leave_the_prompt_columns(tmp_path: Path) -> None:
    row = {"messages": "", "user_prompt": "q", "label": "4"}
    assert only(jsonl(tmp_path, row)).prompt == [USER]


def test_csv_fields_may_span_lines(tmp_path: Path) -> None:
    text = 'user_prompt,label\n"a\nb",1\n\nc,2\n"d\r\n\r\ne",3\nf,4'
    rows = read_rows(written(tmp_path / "r.csv", text))
    assert [(r.line, r.prompt[0]["content"]) for r in rows] == [
        (2, "a\nb"),
        (5, "c"),
        (6, "d\r\n\r\ne"),
        (9, "f"),
    ]


def test_long_csv_fields_are_read_and_the_limit_is_put_back(tmp_path: Path) -> None:
    before = csv.field_size_limit()
    path = written(tmp_path / "r.csv", "user_prompt,label\n" + "x" * 2_000_000 + ",1\n")
    assert len(only(path).prompt[0]["content"]) == 2_000_000
    assert csv.field_size_limit() == before


GOOD = '{"user_prompt": "q", "ground_truth": "4"}\n'
ERRORS = [
    ("r.jsonl", GOOD.encode() + b'{"user_prompt": "\xff"}', r":2: not UTF-8: .*0xff"),
    ("r.csv", b"user_prompt,label\nq,\xe9\n", r":2: not UTF-8"),
    ("r.jsonl", GOOD + "{oops}", r":2: not JSON: .* at column 2"),
    ("r.jsonl", "[" * 100_000, r":1: not JSON"),
    ("r.jsonl", '{"user_prompt": ' + "1" * 5000 + "}", r":1: not JSON: .*digits"),
    ("r.jsonl", GOOD + "[1]", r":2: the row is a list; write one JSON object"),
    ("r.jsonl", "null", r":1: the row is null"),
    ("r.jsonl", '"text"', r":1: the row is 'text'"),
    ("r.jsonl", '{"prompt": "q", "label": "4"}', r"no column user_prompt; there is prompt, label"),
    ("r.jsonl", '{"user_promt": "q", "label": "4"}', r"did you mean 'user_promt'\?"),
    ("r.jsonl", '{"user_prompt": "q"}', r":1: no column ground_truth \(or label\); there is user"),
    ("r.jsonl", '{"user_prompt": "q", "groundtruth": 1}', r"did you mean 'groundtruth'\?"),
    ("r.jsonl", "{}", r"no column user_prompt; there is none"),
    ("r.csv", "user_prompt,answer\nq,4\n", r":1: no column ground_truth \(or label\)"),
    ("r.csv", "user_prompt,answer\n", r":1: no column ground_truth"),
    ("r.jsonl", '{"user_prompt": " ", "ground_truth": "4"}', r":1: user_prompt is empty"),
    ("r.jsonl", '{"user_prompt": null, "ground_truth": "4"}', r":1: user_prompt is empty"),
    ("r.jsonl", '{"user_prompt": "", "system_prompt": "s", "label": "4"}', r"user_prompt is empty"),
    ("r.jsonl", '{"user_prompt": "q", "ground_truth": ""}', r":1: ground_truth is empty"),
    ("r.jsonl", '{"user_prompt": "q", "label": null}', r":1: label is empty"),
    ("r.csv", "user_prompt,label\nq\n", r":2: label is empty"),
    ("r.jsonl", '{"messages": "", "label": "4"}', r":1: user_prompt is empty"),
    ("r.jsonl", '{"metadata": {}}', r":1: the row has neither a prompt nor metadata"),
    ("r.jsonl", '{"metadata": [1]}', r":1: metadata is a list; give a JSON object"),
    ("r.jsonl", '{"metadata": 5}', r":1: metadata is 5"),
    ("r.jsonl", '{"metadata": "[]"}', r":1: metadata is an empty list"),
    ("r.jsonl", '{"metadata": "{a"}', r":1: metadata is not JSON"),
    ("r.jsonl", '{"messages": [], "label": "4"}', r":1: messages is an empty list"),
    ("r.jsonl", '{"messages": {"role": "user"}, "label": "4"}', r":1: messages is an object"),
    ("r.jsonl", '{"messages": ["q"], "label": "4"}', r":1: messages\[0\] is not an object"),
    ("r.jsonl", '{"messages": [{"role": 1}], "label": "4"}', r"messages\[0\] .* string role"),
    ("r.jsonl", '{"messages": [{"role": "user"}]}', r":1: no column ground_truth"),
    ("r.csv", "user_prompt,label\nq,4,5\n", r":2: the row has 3 fields, the header 2"),
    ("r.csv", "user_prompt,label,label\nq,4,5\n", r":1: column 'label' appears twice"),
    ("r.csv", 'user_prompt,label\nq,4\n"open,4\n', r":3: not CSV: unexpected end of data"),
    ("r.csv", "user_prompt,label\nq," + "x" * 17_000_000, r":2: not CSV: field larger than"),
    ("r.jsonl", "", r"has no rows"),
    ("r.jsonl", "\n \n", r"has no rows"),
    ("r.csv", "", r"has no rows"),
    ("r.csv", "user_prompt,label\n", r"has no rows"),
    ("r.parquet", "PAR1", r"ends in '\.parquet'; give a \.jsonl or \.csv file"),
    ("rows", "x", r"ends in ''; give a \.jsonl or \.csv file"),
]


@pytest.mark.parametrize(("name", "content", "message"), ERRORS, ids=range(len(ERRORS)))
def test_error_is_one_line_with_the_place(
    tmp_path: Path, name: str, content: str | bytes, message: str
) -> None:
    path = written(tmp_path / name, content)
    with pytest.raises(ConfigError, match=message) as raised:
        read_rows(path)
    assert str(path) in str(raised.value)
    assert "\n" not in str(raised.value)


def test_missing_file_names_the_nearest(tmp_path: Path) -> None:
    jsonl(tmp_path, {})
    with pytest.raises(ConfigError, match=r"is not there; did you mean 'rows\.jsonl'\?"):
        read_rows(tmp_path / "row.jsonl")


def test_directory_is_no_dataset(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is a directory"):
        read_rows(tmp_path)


def test_csv_error_line_is_the_first_of_its_row(tmp_path: Path) -> None:
    path = written(tmp_path / "r.csv", 'user_prompt,label\n"a\nb",1\n"c\nd",\n')
    with pytest.raises(ConfigError, match=re.escape("r.csv:4: label is empty")):
        read_rows(path)


def test_selection_keeps_positions_in_the_file() -> None:
    rows = [Row(i, i + 1, []) for i in range(5)]
    assert [row.index for row in select_rows(rows, 1, 2)] == [1, 2]
    assert [row.index for row in select_rows(rows, 3, 9)] == [3, 4]
    with pytest.raises(ConfigError, match=r"--offset 5 is past the end; the dataset has 5 rows"):
        select_rows(rows, 5)


texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1)
cells = texts.filter(str.strip)


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(pairs=st.lists(st.tuples(cells, cells), min_size=1, max_size=4))
def test_any_text_is_read_back_from_both_formats(
    tmp_path: Path, pairs: list[tuple[str, str]]
) -> None:
    columns = ("user_prompt", "label")
    lines = [json.dumps(dict(zip(columns, p, strict=True)), ensure_ascii=False) for p in pairs]
    with (tmp_path / "r.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([columns, *pairs])
    for path in (written(tmp_path / "r.jsonl", "\n".join(lines)), tmp_path / "r.csv"):
        assert [(r.prompt[0]["content"], r.label) for r in read_rows(path)] == pairs
