"""``python -m tenure``: the command, which is installed beside the library."""

from __future__ import annotations

import os
import sys
import sysconfig
from typing import Iterator


def places() -> Iterator[str]:
    """Where an installer may have put the command."""
    yield sysconfig.get_path("scripts")
    yield sysconfig.get_path("scripts", f"{os.name}_user")
    package = os.path.dirname(os.path.abspath(__file__))
    # pip install --target, and --prefix.
    yield os.path.join(os.path.dirname(package), "bin")
    yield os.path.abspath(os.path.join(package, *[os.pardir] * 4, "bin"))


def main() -> None:
    for place in places():
        path = os.path.join(place, "tenure")
        if os.path.isfile(path):
            os.execv(path, [path, *sys.argv[1:]])
    sys.exit("tenure: the command is not installed beside the package\n\nhint: install the wheel again")


if __name__ == "__main__":
    main()
