import re
import runpy
from pathlib import Path

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"


def test_the_page_of_parts_is_up_to_date():
    page = runpy.run_path(str(DOCS / "make_parts.py"))["page"]()
    assert (DOCS / "parts.md").read_text(encoding="utf-8") == page, "run: python docs/make_parts.py"


def test_the_readme_example_runs(capsys):
    _, example = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    names: dict = {}
    exec(example, names)
    assert names["scores"].shape == (32, 32)
    assert "tensor" in capsys.readouterr().out


def test_ci_runs_the_very_test_command_of_the_readme():
    command = "pip install -e '.[test]' -c constraints.txt && pytest"
    assert command in (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    assert command in (ROOT / ".ci" / "run").read_text(encoding="utf-8")
