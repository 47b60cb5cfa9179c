"""The wheel: prnn_ext alone, CUDA sources included, usable from an environment that has torch and nothing of ours."""

import re
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    subprocess.run(command, check=True, capture_output=True)
    (path,) = folder.glob("*.whl")
    return path


def test_it_carries_prnn_ext_alone_and_whole(wheel):
    names = [name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name]
    assert {name.split("/")[0] for name in names} == {"prnn_ext"}
    sources = [p for p in (ROOT / "prnn_ext").rglob("*") if p.is_file() and "__pycache__" not in p.parts]
    assert sorted(names) == sorted(p.relative_to(ROOT).as_posix() for p in sources)
    assert "prnn_ext/py.typed" in names
    assert any(name.endswith(".cu") for name in names)


def test_it_asks_for_torch_and_cuda_bindings_alone(wheel):
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        lines = archive.read(name).decode().splitlines()
    pattern = re.compile(r"Requires-Dist: ([\w-]+)(?!.*extra ==)")
    assert {match[1] for line in lines if (match := pattern.match(line))} == {"torch", "cuda-bindings"}


def test_it_runs_in_an_empty_environment(wheel, tmp_path):
    """torch is lent by path; our editable install is not, since ``.pth`` files of a lent folder are not read."""
    venv.create(tmp_path / "env", with_pip=False)
    python = tmp_path / "env" / "bin" / "python"
    (site,) = (tmp_path / "env" / "lib").glob("python*/site-packages")
    (site / "lent.pth").write_text(sysconfig.get_path("purelib") + "\n")
    install = [sys.executable, "-m", "pip", "--python", str(python), "install", "--no-deps", "--no-index", str(wheel)]
    subprocess.run(install, check=True, capture_output=True)
    code = (
        "import importlib.util, torch, prnn_ext\n"
        "from prnn_ext import compiler\n"
        "print(prnn_ext.__file__)\n"
        "x = torch.randn(5, 2, 3, requires_grad=True)\n"
        "output, h_n = prnn_ext.rnn(x, torch.eye(3))\n"
        "output.sum().backward()\n"
        "assert x.grad.shape == x.shape\n"
        "assert 'recurrence.cu' in compiler._sources('recurrence.cu')\n"
        "assert all(importlib.util.find_spec(name) is None for name in ('experiments', 'sweeps'))\n"
    )
    ran = subprocess.run([str(python), "-I", "-c", code], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.startswith(str(site))
