"""How a program gets to a worker: by import where the same source is, else by value."""

import pickle
import subprocess
import sys
import threading

import pytest

from osmosis_core import AgentWorkflowConfig, ConfigError, ExecutionRequest
from osmosis_core.discovery import load_entrypoint
from osmosis_core.execution import Program, run_workflow
from osmosis_core.testing import conformance_workflows as programs
from osmosis_ray.shipment import pack_program

AGENTS = """
import threading
from helper import ANSWER
from osmosis_core import AgentWorkflow, AgentWorkflowConfig

class Config(AgentWorkflowConfig):
    step: int = 1

class Speaks(AgentWorkflow[Config]):
    async def run(self, ctx):
        return [{"role": "assistant", "content": f"{ANSWER} {ctx.config.step}"}]

"""
PLAIN = "config = Config(name='speaks', step=2)"
LOCKED = "config = Config(name='speaks', step=2, lock=threading.Lock())"
WORKER = """
import asyncio, pickle, sys
from osmosis_core import ExecutionRequest
from osmosis_core.execution import run_workflow
program = pickle.load(sys.stdin.buffer).load()
result = asyncio.run(run_workflow(ExecutionRequest("r", []), program))
print(result.err_message or result.sample.messages[-1]["content"])
"""


@pytest.fixture
def project(tmp_path, monkeypatch):
    """Pack a workflow in a file, which has a module beside it, and forget both."""
    before = list(sys.path)
    monkeypatch.setattr(sys, "path", list(before))

    def packed(config):
        (tmp_path / "speakers.py").write_text(AGENTS + config)
        (tmp_path / "helper.py").write_text("ANSWER = 'as on the host'\n")
        forget()
        shipment = pack_program(load_entrypoint(str(tmp_path / "speakers.py")).program)
        forget()
        sys.path[:] = before
        return shipment

    yield packed
    forget()


def forget():
    for name in ("speakers", "helper"):
        sys.modules.pop(name, None)


async def said(shipment):
    """What the workflow says where the shipment is opened."""
    result = await run_workflow(ExecutionRequest("r", []), shipment.load())
    return result.sample.messages[-1]["content"]


@pytest.mark.parametrize("config", [PLAIN, LOCKED])
async def test_code_is_imported_where_the_same_source_is(project, config):
    """Its configs may hold what cannot be pickled."""
    assert await said(project(config)) == "as on the host 2"
    assert "helper" in sys.modules


def test_code_that_is_not_there_is_sent(project, tmp_path):
    shipment = project(PLAIN)
    for file in tmp_path.glob("*.py"):
        file.unlink()
    command, given = [sys.executable, "-c", WORKER], pickle.dumps(shipment)
    done = subprocess.run(command, input=given, capture_output=True, timeout=60, check=True)
    assert done.stdout.decode().strip() == "as on the host 2"


async def test_code_that_is_another_there_is_sent(project, tmp_path):
    shipment = project(PLAIN)
    (tmp_path / "helper.py").write_text("ANSWER = 'other code'\n")
    assert await said(shipment) == "as on the host 2"


def test_code_that_can_neither_be_imported_nor_sent_says_so(project, tmp_path):
    shipment = project(LOCKED)
    (tmp_path / "helper.py").unlink()
    with pytest.raises(ConfigError, match=r"cannot pickle.*working_dir") as raised:
        shipment.load()
    assert "module 'helper' is not on this node as it is on the host" in str(raised.value)


async def test_class_of_a_function_is_sent():
    class Local(programs.Answers):
        pass

    assert await said(pickle.loads(pickle.dumps(pack_program(Program(Local))))) == "42"


def test_installed_code_is_never_sent():
    shipment = pack_program(Program(programs.Answers, programs.TOOLS))
    assert shipment.by_value is None and shipment.sources == {}
    assert shipment.load().workflow_config == programs.TOOLS


def test_config_that_can_neither_be_pickled_nor_named_is_refused():
    config = AgentWorkflowConfig(name="w", lock=threading.Lock())
    with pytest.raises(ConfigError, match="keep locks, clients and open files out of configs"):
        pack_program(Program(programs.Answers, config))
