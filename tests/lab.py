"""JupyterLab for a while: on a free port, with a token, on a copy of a notebook, all cells run."""

import os
import secrets
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from contextlib import contextmanager

QUIET = '{"fetchNews": "false", "checkForUpdates": false}'
# The notebook by its path: the shell's current widget is null in a window without focus.
PANEL = """
    const panel = [...window.jupyterapp?.shell?.widgets("main") ?? []].find(
        widget => widget.context?.path === arguments[0]);
"""
STATUS = PANEL + "return panel?.sessionContext?.session?.kernel?.status"
RUN_ALL = (
    PANEL
    + """
    jupyterapp.commands.execute("notebook:run-all-cells", {semanticWidget: panel.id})
"""
)


def wait(call, seconds=180):
    """What ``call`` returns once that is true."""
    end = time.monotonic() + seconds
    while not (value := call()):
        assert time.monotonic() < end, f"not within {seconds} s"
        time.sleep(0.1)
    return value


@contextmanager
def jupyterlab(browser, folder, notebook):
    """The browser on a copy of ``notebook`` in ``folder``; the server is shut down in any case."""
    shutil.copy(notebook, folder)
    settings = folder / "config/lab/user-settings/@jupyterlab/apputils-extension"
    settings.mkdir(parents=True)
    (settings / "notification.jupyterlab-settings").write_text(QUIET)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    token = secrets.token_hex(16)
    own = {
        f"JUPYTER_{name.upper()}_DIR": str(folder / name) for name in ("config", "data", "runtime")
    }
    server = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "jupyterlab",
            "--no-browser",
            "--allow-root",
            f"--port={port}",
            "--ServerApp.port_retries=0",
            f"--IdentityProvider.token={token}",
            f"--ServerApp.root_dir={folder}",
            "--LabApp.expose_app_in_browser=True",
        ],
        env=os.environ | own | {"IPYTHONDIR": str(folder / "ipython")},
        cwd=folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )

    def answers():
        assert server.poll() is None, "JupyterLab ended"
        try:
            return urllib.request.urlopen(f"http://127.0.0.1:{port}/api?token={token}", timeout=5)
        except OSError:
            return None

    try:
        wait(answers)
        browser.get(f"http://127.0.0.1:{port}/lab/tree/{notebook.name}?token={token}")
        wait(lambda: browser.execute_script(STATUS, notebook.name) == "idle")
        browser.execute_script(RUN_ALL, notebook.name)
        yield browser
    finally:
        server.terminate()
        try:
            server.wait(20)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()
