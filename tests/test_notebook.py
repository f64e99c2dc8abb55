"""The notebook of the examples runs from top to bottom."""

import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

NOTEBOOK = Path(__file__).parents[1] / "examples" / "first_hour.ipynb"


def test_the_notebook_runs(tmp_path, monkeypatch, capsys):
    shown = list[str]()
    display = ModuleType("IPython.display")  # Jupyter's own, which only shows
    vars(display).update(display=shown.append, SVG=str)
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    monkeypatch.chdir(tmp_path)
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    names = SimpleNamespace()
    for cell in code:
        exec(cell.replace("STEPS = 20", "STEPS = 5"), vars(names))
    curves, file = shown
    assert curves.startswith("<svg") and Path(file).read_text().startswith("<svg")
    assert names.trainer.state.global_step == names.plain.state.global_step == 5
    assert "gear " in capsys.readouterr().out
