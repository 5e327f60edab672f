"""A Harbor environment without a daemon: each command is a sandbox of its own over host files."""

import asyncio
import shutil
import sys
from contextlib import suppress

from harbor.environments.base import BaseEnvironment, ExecResult
from harbor.environments.capabilities import EnvironmentCapabilities

WRITABLE = ("logs", "tests", "workspace", "tmp", "solution", "root")
READ_ONLY = ("/usr", "/bin", "/lib", "/lib64", "/etc", sys.base_prefix)


class BubblewrapEnvironment(BaseEnvironment):
    """Bind mounts of a directory per trial; nothing runs between two commands."""

    def __init__(self, *args, bwrap, **kwargs):
        self._bwrap = bwrap
        super().__init__(*args, **kwargs)
        self._root = self.trial_paths.trial_dir.parent.parent / "root"

    @staticmethod
    def type():
        return "bubblewrap"

    @property
    def capabilities(self):
        return EnvironmentCapabilities()

    @classmethod
    def resource_capabilities(cls):
        return None

    def _validate_definition(self):
        pass

    async def start(self, force_build):
        for name in (*WRITABLE, "logs/agent", "logs/verifier", "logs/artifacts"):
            (self._root / name).mkdir(parents=True, exist_ok=True)

    async def stop(self, delete):
        shutil.rmtree(self._root, ignore_errors=True)

    def _here(self, path):
        return self._root / str(path).lstrip("/")

    async def upload_file(self, source_path, target_path):
        self._here(target_path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source_path, self._here(target_path))

    async def upload_dir(self, source_dir, target_dir):
        shutil.copytree(source_dir, self._here(target_dir), dirs_exist_ok=True, symlinks=True)

    async def download_file(self, source_path, target_path):
        shutil.copy2(self._here(source_path), target_path, follow_symlinks=False)

    async def download_dir(self, source_dir, target_dir):
        shutil.copytree(self._here(source_dir), target_dir, dirs_exist_ok=True, symlinks=True)

    async def exec(self, command, cwd=None, env=None, timeout_sec=None, user=None):
        env = {"PATH": "/usr/bin:/bin", **(self._merge_env(env) or {})}
        binds = [part for path in READ_ONLY for part in ("--ro-bind-try", path, path)]
        binds += [part for name in WRITABLE for part in ("--bind", self._here(name), f"/{name}")]
        sandbox = [self._bwrap, "--unshare-all", "--die-with-parent", "--dev", "/dev", "--proc"]
        where = ["--chdir", cwd or "/workspace"]
        process = await asyncio.create_subprocess_exec(
            *sandbox, "/proc", *binds, *where, "bash", "-c", command,
            env=env, stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        try:
            async with asyncio.timeout(timeout_sec):
                stdout, stderr = await process.communicate()
        finally:
            with suppress(ProcessLookupError):
                process.kill()
        return ExecResult(
            stdout=stdout.decode(), stderr=stderr.decode(), return_code=process.returncode
        )
