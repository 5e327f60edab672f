"""Which installed framework can do what, as a table of a Markdown page.

`python -m osmosis_core.testing.adapter_conformance.matrix PAGE` runs every check of every
installed framework and writes the table between the page's two markers.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from osmosis_core.plugins import get_plugins
from osmosis_core.testing.adapter_conformance.fixtures import OPTIONAL, REQUIRED, declared
from osmosis_core.testing.adapter_conformance.kit import CHECKS
from osmosis_core.testing.adapter_conformance.report import (
    capability_table,
    load_fixtures,
    run_checks,
)

BEGIN = "<!-- capabilities: written by `make capabilities` -->"
END = "<!-- end of capabilities -->"


def matrix(tables: Mapping[str, Mapping[str, str]]) -> str:
    """A Markdown table: a row for each capability, a column for each framework."""
    head = ["capability", "checks", *tables]
    rows = [head, ["---"] * len(head)]
    for capability in (*REQUIRED, *OPTIONAL):
        count = sum(check.capability == capability for check in CHECKS.values())
        states = [table[capability] for table in tables.values()]
        rows.append([f"`{capability}`", str(count), *states])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def checked() -> dict[str, dict[str, str]]:
    """The capability table of every installed framework, after all its checks."""
    found = get_plugins().frameworks
    return {f.name: capability_table(run_checks(load_fixtures(f))) for f in found if f.conformance}


def claimed() -> dict[str, dict[str, str]]:
    """What the frameworks' fixtures declare, which is what `checked` says while they pass."""
    tables: dict[str, dict[str, str]] = {}
    for framework in get_plugins().frameworks:
        if framework.conformance:
            has = {*REQUIRED, *declared(load_fixtures(framework))}
            order = (*REQUIRED, *OPTIONAL)
            tables[framework.name] = {name: "yes" if name in has else "no" for name in order}
    return tables


def with_matrix(page: str, table: str) -> str:
    """The page with this table between its markers."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{table}\n\n{END}{after}"


if __name__ == "__main__":
    target = Path(sys.argv[1])
    target.write_text(with_matrix(target.read_text(), matrix(checked())))
