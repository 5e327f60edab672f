# A fresh machine needs Python 3.12 or newer, pip and make; everything else lands in .venv.
.DEFAULT_GOAL := help
.PHONY: help demo demo-mixed test test-full lint types fix capabilities wheels bench clean

PLUGINS := agent_loop eval gateway harbor langgraph loop_watch openai_agents process ray server strands
EXAMPLES := plugin_call_log plugins/osmosis_pydantic_ai plugins/osmosis_smolagents
EDITABLE := -e . $(PLUGINS:%=-e plugins/%) $(EXAMPLES:%=-e examples/%)
BIN := .venv/bin
STAMP := .venv/.installed

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

$(STAMP): pyproject.toml constraints.txt overrides.txt $(wildcard plugins/*/pyproject.toml) $(EXAMPLES:%=examples/%/pyproject.toml)
	@for python in python3.12 python3.13 python3.14 python3 python; do \
	  if $$python -c 'import sys; sys.exit(sys.version_info < (3, 12))' 2>/dev/null; then \
	    test -x $(BIN)/python || $$python -m venv .venv; found=1; break; fi; done; \
	  test -n "$$found" || { echo "no Python 3.12 or newer found; install one"; exit 2; }
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt uv
	$(BIN)/uv pip install --quiet --python $(BIN)/python -c constraints.txt --override overrides.txt --group dev $(EDITABLE)
	@touch $@

demo: $(STAMP) ## roll out real Strands agents on 200 word problems, with the embedded policy
	$(BIN)/osmosis eval run examples/strands_math/workflow.py \
	  --dataset examples/strands_math/rows.jsonl --policy demo --concurrency 8 --show 1

demo-mixed: $(STAMP) ## LangGraph, Strands, OpenAI Agents and a bare call in one workflow, graded one by one
	$(BIN)/osmosis eval run examples/mixed_research/workflow.py \
	  --dataset examples/mixed_research/rows.jsonl --policy demo --concurrency 8 --show 1

test: $(STAMP) ## all tests but the slow ones
	$(BIN)/pytest -q -n 2

test-full: $(STAMP) ## the slow tests: wheels in a clean environment, peers, long runs
	$(BIN)/pytest -q -m slow

lint: $(STAMP) ## formatting and lint
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: $(STAMP) ## strict types
	$(BIN)/basedpyright

fix: $(STAMP) ## format and mend what lint can mend
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

capabilities: $(STAMP) ## check every framework and write the table of docs/frameworks.md
	$(BIN)/python -m osmosis_core.testing.adapter_conformance.matrix docs/frameworks.md

wheels: $(STAMP) ## build every distribution into dist/
	rm -rf dist
	$(BIN)/uv build --quiet --wheel --out-dir dist .
	for plugin in $(PLUGINS); do $(BIN)/uv build --quiet --wheel --out-dir dist plugins/$$plugin || exit 1; done

bench: $(STAMP) ## benchmarks, side by side with the peer when it can be installed
	$(BIN)/python benchmarks/kernel.py
	$(BIN)/python benchmarks/transport.py
	$(BIN)/python benchmarks/frameworks.py
	$(BIN)/python benchmarks/records.py
	$(BIN)/python benchmarks/mixed.py
	$(BIN)/python benchmarks/loop_watch.py
	$(BIN)/python benchmarks/server.py
	$(BIN)/python benchmarks/chaos.py 100
	$(BIN)/python benchmarks/backends.py

clean: ## remove everything that was installed or built
	rm -rf .venv .venv-kernel .venv-peer .venv-peer-server dist .osmosis
