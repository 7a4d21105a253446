"""Stores for the tests: `TENURE_TEST_STORES` is the program of the test kit that starts servers."""

import os
import subprocess
import sys
import uuid

import pytest

import tenure

SERVERS = ("redis", "postgres", "etcd")


def pytest_addoption(parser):
    parser.addoption("--long", action="store_true", help="also what takes minutes")


def pytest_configure(config):
    config.addinivalue_line("markers", "long: takes minutes; only with --long")


def pytest_collection_modifyitems(config, items):
    if not config.getoption("--long"):
        for item in items:
            if "long" in item.keywords:
                item.add_marker(pytest.mark.skip(reason="only with --long"))


@pytest.fixture(scope="session")
def servers():
    """The URL of each server. One that does not start is a failure."""
    program = os.environ["TENURE_TEST_STORES"]
    process = subprocess.Popen([program, *SERVERS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    urls = {}
    for name in SERVERS:
        line = process.stdout.readline().strip()
        assert line, f"{name} did not start"
        urls[name] = line
    yield urls
    process.stdin.close()
    process.wait()


@pytest.fixture
def local_url(tmp_path):
    return f"local:{tmp_path}/locks"


@pytest.fixture(params=["local", *SERVERS])
def url(request, tmp_path):
    """A store of each kind."""
    if request.param == "local":
        return f"local:{tmp_path}/locks"
    return request.getfixturevalue("servers")[request.param]


@pytest.fixture
def urls(servers, tmp_path):
    """A store of each kind, all at once."""
    return [f"local:{tmp_path}/locks", *servers.values()]


@pytest.fixture(params=["redis", "postgres"])
def shared_url(request, servers):
    """A store that forgets nothing of a process which has ended."""
    return servers[request.param]


@pytest.fixture
def redis_url(servers):
    return servers["redis"]


@pytest.fixture
def name():
    """A name that no other test uses."""
    return f"test/{uuid.uuid4().hex}"


@pytest.fixture
def locks(url):
    client = tenure.connect(url)
    yield client
    client.close()


@pytest.fixture
def python():
    """Runs a program of its own, and returns what it printed."""

    def run(code, *args, ok=True, timeout=60, env=None, options=()):
        done = subprocess.run(
            [sys.executable, *options, "-c", code, *map(str, args)],
            capture_output=True,
            text=True,
            timeout=timeout,
            env={**os.environ, **(env or {})},
        )
        if ok:
            assert done.returncode == 0, done.stdout + done.stderr
        return done

    return run
