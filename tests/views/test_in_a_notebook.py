"""A notebook that is run: what a new user's cells show, with no setting and no ipywidgets."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NEEDED = ("nbclient", "nbformat", "ipykernel")
RUN = """
import json, sys, nbclient, nbformat
cells = [nbformat.v4.new_code_cell(cell) for cell in json.load(sys.stdin)]
notebook = nbformat.v4.new_notebook(cells=cells)
nbclient.NotebookClient(notebook, timeout=300).execute()
shown = [[o["data"] for o in cell["outputs"] if "data" in o] for cell in notebook.cells]
print(json.dumps(shown))
"""
KERNEL = {"argv": [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]}


@pytest.fixture(scope="module")
def shown(tmp_path_factory):
    """What each of some cells shows, by kind: run where Jupyter is, or where pip can put it."""
    folder = tmp_path_factory.mktemp("notebook")
    path = [str(ROOT)]
    if not all(map(importlib.util.find_spec, NEEDED)):
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q", "install"]
        put = [*pip, "--target", str(folder / "jupyter"), *NEEDED]
        if subprocess.run(put, capture_output=True).returncode:
            pytest.skip("Jupyter is not there, and pip cannot bring it")
        path.append(str(folder / "jupyter"))
    spec = folder / "share/kernels/python3/kernel.json"
    spec.parent.mkdir(parents=True)
    spec.write_text(json.dumps({**KERNEL, "display_name": "Python", "language": "python"}))
    where = {"PYTHONPATH": os.pathsep.join(path), "JUPYTER_PATH": str(folder / "share")}

    def run(*cells):
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", RUN],
            input=json.dumps(cells),
            capture_output=True,
            text=True,
            cwd=folder,
            env={**os.environ, **where},
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    return run


@pytest.mark.slow
def test_figures_tables_and_progress_show_themselves(shown):
    made = (
        "import torch, relprop\n"
        "from relprop.demo.model import digit_scene_model\n"
        "model, x = digit_scene_model(), torch.rand(2, 1, 32, 32)\n"
        "e = relprop.explain(model, x, 3)"
    )
    again = "relprop.explain(model, x, 3, batch_size=1, progress=True);"
    pictures = ("e.plot()", "relprop.plot.heatmap(e)", "e")
    tables = ("relprop.compare(model, x)", "relprop.check(model, x)")
    _, *found, table, check, ledger, progress = shown(made, *pictures, *tables, "e.ledger", again)
    for (output,) in found:
        assert output["image/png"]
    assert all("<table>" in output["text/html"] for (output,) in (table, check))
    assert ledger[0]["text/plain"].startswith("ledger over ")
    assert progress[0]["text/plain"].startswith("explaining: part 2 of 2")
