"""What is installed: the library and the command."""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile

import pytest

import tenure

def test_the_command_is_on_the_path_and_in_the_module():
    on_path = os.path.join(sysconfig.get_path("scripts"), "tenure")
    for command in ([on_path], [sys.executable, "-m", "tenure"]):
        done = subprocess.run([*command, "--version"], capture_output=True, text=True)
        assert done.returncode == 0 and done.stdout.startswith("tenure "), done


def test_the_command_and_the_library_share_locks(local_url, name):
    locks = tenure.connect(local_url)
    with locks.mutex(name):
        command = [sys.executable, "-m", "tenure", "--engine", local_url, "run", name, "--wait", "0s", "--", "true"]
        assert subprocess.run(command, capture_output=True).returncode == 75
    assert subprocess.run(command, capture_output=True).returncode == 0


def test_the_lines_of_the_readme_run_where_only_the_wheel_is(url):
    """A fresh environment, with no Rust on the path."""
    bare = pathlib.Path(os.environ["TENURE_TEST_BARE"])
    readme = (pathlib.Path(__file__).parent.parent / "README.md").read_text()
    (lines,) = re.findall(r"```python\n(.*?)```", readme, re.DOTALL)
    program = "def charge(token): print(token > 0)\n" + lines.replace("redis://127.0.0.1", url)
    assert url in program
    path = f"{bare.parent}:/usr/bin:/bin"
    assert not shutil.which("cargo", path=path) and not shutil.which("rustc", path=path)
    # In the environment's folder, so that no sources are found.
    done = subprocess.run(
        [bare, "-c", program], cwd=bare.parent, env={"PATH": path}, capture_output=True, text=True, timeout=60
    )
    assert (done.stdout, done.stderr) == ("True\n", "")


def test_the_wheel_is_small_and_for_every_python():
    path = os.environ["TENURE_TEST_WHEEL"]
    assert "-cp39-abi3-" in os.path.basename(path)
    assert os.path.getsize(path) <= int(os.environ["TENURE_TEST_WHEEL_MAX"])
    names = zipfile.ZipFile(path).namelist()
    for wanted in ("tenure/py.typed", "tenure/_tenure.pyi", "tenure/_tenure.abi3.so"):
        assert wanted in names, names
    assert any(name.endswith(".data/scripts/tenure") for name in names)


def test_every_public_item_has_documentation():
    for name in tenure.__all__:
        item = getattr(tenure, name)
        assert item.__doc__, name
        for verb, what in vars(item).items() if isinstance(item, type) else ():
            if not verb.startswith("_") and callable(what):
                assert what.__doc__, f"{name}.{verb}"


def test_no_error_shows_a_password():
    with pytest.raises(tenure.Error) as error:
        tenure.connect("redis://:hunter2@127.0.0.1:1").mutex("a").acquire()
    assert "hunter2" not in repr(error.value) + str(error.value)
