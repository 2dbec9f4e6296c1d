"""Parts of other packages: found through entry points by the command line, by recipes and by `build`."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

EXAMPLE = Path(__file__).parent.parent / "examples" / "new_pooling.py"
TRAIN = """
import sys
from pathlib import Path
from new_pooling import make_data
from polysem import load, recipes
from polysem.training import train

folder = Path(sys.argv[1])
tiny = ["dim=8", "text.encoder.word_dim=8", "data.min_count=1", "training.batch=48", "training.epochs=1"]
parts = ["image.sets.pooling=logmeanexp", "text.sets.pooling=logmeanexp"]
train(recipes.load("vse-infty", [*tiny, *parts]), make_data(folder / "data"), folder / "run", tracker=None)
print(load(folder / "run").image.sets.pooling.config["name"])
"""
READER_AND_PROTOCOL = """
from dataclasses import dataclass

from polysem.data.collection import Collection, Item, Media
from polysem.data.readers import register_reader
from polysem.evaluation.protocols import Protocol, register


@register_reader(lambda data: {"path": data.path} if data.path.suffix == ".list" else None, 5, layout="a .list")
def read_list(path, problems=None):
    return Collection("list", "image", [Item(n, Media(path.parent, n), (n,)) for n in path.read_text().split()])


@register
@dataclass(frozen=True)
class Nothing(Protocol):
    name: str = "nothing"
    about: str = "measures nothing"

    def compute(self, task):
        raise NotImplementedError
"""


def install(site: Path, package: str, entry: str) -> None:
    """What an installer leaves of a package of one module that is already in `site`."""
    info = site / f"{package.replace('-', '_')}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n", encoding="utf-8")
    (info / "entry_points.txt").write_text(f"[polysem.parts]\n{entry}\n", encoding="utf-8")


def python(site: Path, code: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
        check=False,
    )


def polysem(site: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    return python(site, "from polysem.cli import main; main()", *arguments)


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder of installed packages with the pooling of the documentation in it."""
    folder = tmp_path / "site"
    folder.mkdir()
    shutil.copy(EXAMPLE, folder)
    install(folder, "polysem-logmeanexp", "logmeanexp = new_pooling")
    return folder


def test_the_command_line_lists_the_parts_of_an_installed_package(site: Path) -> None:
    result = polysem(site, "parts", "pooling", "--json")
    assert result.returncode == 0, result.stderr
    parts = {part["name"]: part for part in json.loads(result.stdout)["pooling"]}
    assert {"logmeanexp", "gpo"} <= set(parts)
    assert [knob["name"] for knob in parts["logmeanexp"]["knobs"]] == ["dim", "start"]


@pytest.mark.slow
def test_a_recipe_trains_with_the_part_and_its_model_loads(site: Path, tmp_path: Path) -> None:
    result = python(site, TRAIN, tmp_path)
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines()[-1] == "logmeanexp"


def test_an_entry_point_may_be_a_function(site: Path) -> None:
    code = "from polysem.pooling.base import registry\nfrom polysem.pooling import Mean\n\n\n"
    code += "def add():\n    registry.register('average')(type('Average', (Mean,), {}))\n"
    (site / "averages.py").write_text(code, encoding="utf-8")
    install(site, "averages", "any = averages:add")
    result = python(site, "import polysem; print(type(polysem.pooling.build('average')).__name__)")
    assert result.stdout.strip() == "Average", result.stderr


@pytest.fixture
def listed(site: Path) -> Path:
    """The same with a package of a reader and a protocol."""
    (site / "lists.py").write_text(READER_AND_PROTOCOL, encoding="utf-8")
    install(site, "lists", "any = lists")
    return site


def test_a_reader_of_an_installed_package_is_asked_before_any_part_was_looked_up(listed: Path, tmp_path: Path) -> None:
    data = tmp_path / "my.list"
    data.write_text("a.png b.png", encoding="utf-8")
    code = "import sys; from polysem.data import open_collection\nfor path in sys.argv[1:]:\n"
    result = python(listed, f"{code}    print(open_collection(path).captions)", data, EXAMPLE)
    assert result.stdout.strip() == "['a.png', 'b.png']", result.stderr
    assert "Known layouts: a .list, Karpathy's dataset_*.json," in result.stderr.splitlines()[-1]


def test_a_protocol_of_an_installed_package_is_found_before_any_part_was_looked_up(listed: Path) -> None:
    code = "from polysem.evaluation import protocols as p; print('nothing' in p.names(), p.find('nothing').about)"
    assert python(listed, code).stdout.strip() == "True measures nothing"


def test_a_broken_package_is_named_and_the_others_work(site: Path) -> None:
    (site / "broken.py").write_text("import a_package_that_is_not_there\n", encoding="utf-8")
    install(site, "polysem-broken", "broken = broken")
    listed = polysem(site, "parts", "pooling")
    assert listed.returncode == 0
    assert "logmeanexp" in listed.stdout
    assert "'polysem-broken'" in listed.stderr
    assert "a_package_that_is_not_there" in listed.stderr
    assert listed.stderr.count("polysem-broken") == 1
    unknown = python(site, "import polysem; polysem.pooling.build('medoid')")
    assert unknown.returncode == 1
    last = unknown.stderr.splitlines()[-1]
    assert "Unknown pooling 'medoid'" in last
    assert "logmeanexp" in last
    assert "'polysem-broken'" in last
