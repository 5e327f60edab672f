"""Who may import whom, how large the kernel may grow, and what importing it may cost."""

import ast
import subprocess
import sys
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
KERNEL = ROOT / "osmosis_core"
SCAFFOLD = KERNEL / "testing/scaffold"

LAYERS = [
    {"packing"},
    {"records"},
    {"record_json"},
    {"types"},
    {"errors", "config"},
    {"sample_ids"},
    {"active"},
    {"hookspecs", "offers"},
    {"plugins"},
    {"context"},
    {"workflow", "backend"},
    {"grader"},
    {
        "policy",
        "policy.assemble",
        "policy.attempt",
        "policy.binding",
        "policy.calls",
        "policy.chains",
        "policy.clients",
        "policy.dialect",
        "policy.retry",
        "policy.rewrites",
        "policy.transport",
        "policy.wire",
    },
    {"execution"},
    {"discovery"},
    {"backends", "backends.local", "backends.phase", "backends.placed"},
    {"builtin", "validation"},
    {""},
    {"cli", "testing"},
]
LAZY_UPWARD = {("plugins", "builtin")}
"""The one edge against the order: the manager loads the kernel's own offers as a plugin."""

LAZY_FROM_BUILTIN = {("builtin", "testing.demo")}
FRAMEWORKS = {"agents", "httpx", "httpx2", "langchain", "langchain_core", "langchain_openai"} | {
    "langgraph",
    "langsmith",
    "litellm",
    "mcp",
    "openai",
    "ray",
    "strands",
}
WEB = {"fastapi", "starlette", "uvicorn", "flask"}
EDGES = {"agent_loop": {"server"}, "eval": {"gateway", "server"}, "server": {"gateway"}}
"""Plugins that build on other plugins; all else builds on the kernel alone."""

PUBLIC_MODULES = {
    "backend",
    "backends",
    "cli",
    "discovery",
    "errors",
    "execution",
    "hookspecs",
    "plugins",
    "policy",
} | {
    "testing",
    "validation",
}


def modules(root):
    """Names and files of modules, but for those that `osmosis plugins new` copies."""
    for path in sorted(root.rglob("*.py")):
        if path.is_relative_to(SCAFFOLD) and path.parent != SCAFFOLD:
            continue
        parts = path.relative_to(root).with_suffix("").parts
        yield ".".join(p for p in parts if p != "__init__"), path


def imports(path, *, lazy=True):
    """Absolute names that a file imports; type-checking blocks do not count."""
    tree = ast.parse(path.read_text())
    guarded = {
        id(node)
        for block in ast.walk(tree)
        if isinstance(block, ast.If) and "TYPE_CHECKING" in ast.unparse(block.test)
        for node in ast.walk(block)
    }
    nodes = ast.walk(tree) if lazy else iter(tree.body)
    for node in nodes:
        if id(node) in guarded:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            if node.module != "osmosis_core":
                yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def level(module):
    name = module if any(module in layer for layer in LAYERS) else module.partition(".")[0]
    return next(i for i, layer in enumerate(LAYERS) if name in layer)


def kernel_edges():
    names = {name for name, _ in modules(KERNEL)}
    for name, path in modules(KERNEL):
        for imported in imports(path):
            package, _, target = imported.partition(".")
            if package == "osmosis_core" and target in names and target != name:
                yield name, target


def test_no_import_goes_upward():
    upward = {
        (source, target)
        for source, target in kernel_edges()
        if level(target) > level(source) and (source, target) not in LAZY_UPWARD
    }
    assert upward - {("builtin", "testing"), *LAZY_FROM_BUILTIN} == set()


def test_every_kernel_module_has_its_layer():
    known = set().union(*LAYERS)
    unplaced = {n for n, _ in modules(KERNEL) if n not in known and not n.startswith("testing")}
    assert unplaced == set()


def test_kernel_names_no_framework_at_all():
    for name, path in modules(KERNEL):
        roots = {imported.partition(".")[0] for imported in imports(path)}
        assert roots & (FRAMEWORKS | WEB) == set(), name
        assert not any(root.startswith("osmosis_") and root != "osmosis_core" for root in roots)


@pytest.mark.parametrize("plugin", sorted(p.name for p in (ROOT / "plugins").iterdir()))
def test_plugin_imports_public_names_and_only_the_plugins_it_stands_on(plugin):
    own = f"osmosis_{plugin}"
    allowed = {own} | {f"osmosis_{other}" for other in EDGES.get(plugin, ())}
    for _, path in modules(ROOT / "plugins" / plugin / own):
        for imported in imports(path):
            root, _, rest = imported.partition(".")
            if root == "osmosis_core":
                public = rest in PUBLIC or rest.partition(".")[0] in PUBLIC_MODULES
                assert public, f"{path.name} imports {imported}"
            elif root.startswith("osmosis_"):
                assert root in allowed, f"{path.name} imports {imported}"


@pytest.mark.parametrize("name", ["pydantic_ai", "smolagents"])
def test_third_party_imports_public_names_only(name):
    own = f"osmosis_{name}"
    for _, path in modules(ROOT / "examples/plugins" / own / own):
        for imported in imports(path):
            root, _, rest = imported.partition(".")
            if root == "osmosis_core":
                public = rest in {"", *PUBLIC} or rest.partition(".")[0] in PUBLIC_MODULES
                assert public, f"{path.name} imports {imported}"
            assert not root.startswith("osmosis_") or root in ("osmosis_core", own), path.name


def public_names():
    import osmosis_core

    return set(osmosis_core.__all__)


PUBLIC = public_names()


def code_lines(path):
    """Lines that hold code: no blank lines, comments or docstrings."""
    docstrings = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            docstrings |= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    lines = set()
    with path.open("rb") as file:
        for token in tokenize.tokenize(file.readline):
            if token.type in (tokenize.NAME, tokenize.OP, tokenize.NUMBER, tokenize.STRING):
                lines |= set(range(token.start[0], token.end[0] + 1))
    return len(lines - docstrings)


def test_kernel_stays_within_its_budget():
    sizes = {n: code_lines(p) for n, p in modules(KERNEL) if not n.startswith("testing")}
    assert sum(sizes.values()) <= 3430


def test_no_kernel_file_passes_300_lines():
    kernel = [(n, p) for n, p in modules(KERNEL) if not n.startswith("testing")]
    long = {n: len(p.read_text().splitlines()) for n, p in kernel}
    assert {n: size for n, size in long.items() if size > 300} == {}


@pytest.mark.parametrize("command", ["import osmosis_core", "import osmosis_core.policy"])
def test_importing_the_kernel_imports_no_http_library_and_no_framework(command):
    banned = sorted(FRAMEWORKS | WEB | {"aiohttp", "click", "rich", "osmosis_strands"})
    check = f"{command}; import sys; print([m for m in {banned} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "[]", done.stdout + done.stderr


@pytest.mark.parametrize("command", ["--help", "plugins"])
def test_command_line_imports_no_framework_with_all_plugins_installed(command):
    banned = sorted(FRAMEWORKS | WEB | {"aiohttp", "rich"})
    check = (
        "import sys; from osmosis_core.cli import main\n"
        f"try: main(['{command}'])\n"
        f"except SystemExit: print([m for m in {banned} if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip().endswith("[]"), done.stdout + done.stderr
    plugins = {p.name.replace("_", "-") for p in (ROOT / "plugins").iterdir()}
    assert command != "plugins" or all(f"osmosis-{name} " in done.stdout for name in plugins)
