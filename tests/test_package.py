import subprocess
import sys

import pytest

import polysem


def test_importing_the_package_does_not_load_torch():
    script = "import sys, polysem; print('torch' in sys.modules, polysem.__version__)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", polysem.__version__]


@pytest.mark.slow
def test_the_folders_and_local_features_are_attributes_of_the_package():
    script = "import polysem; print(polysem.pooling.names()[0], polysem.LocalFeatures.__name__)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["adapool", "LocalFeatures"]


def test_unknown_attributes_are_attribute_errors():
    with pytest.raises(AttributeError, match="polling"):
        _ = polysem.polling
    assert set(dir(polysem)) >= {"pooling", "sets", "similarity", "objectives", "LocalFeatures"}
