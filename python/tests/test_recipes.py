"""The recipes of the guide, each with two processes or clients."""

import os
import pathlib
import subprocess
import sys
import threading

import pytest

import tenure

EXAMPLES = pathlib.Path(__file__).parent.parent / "examples"


@pytest.fixture
def example(python):
    """Runs a program that may import the examples, with a store."""

    def run(url, code, *args, **more):
        path = f"import sys; sys.path.insert(0, {str(EXAMPLES)!r})\n"
        return python(path + code, *args, env={"TENURE_ENGINE": url, "BROKER": more.pop("broker", "")}, **more)

    return run


def test_a_django_command_does_not_overlap(example, local_url):
    pytest.importorskip("django")
    code = """
import django.conf; django.conf.settings.configure(); django.setup()
from django.core.management import call_command
import django_command
call_command(django_command.Command())
"""
    assert "sent 3 invoices" in example(local_url, code).stdout
    locks = tenure.connect(local_url)
    with locks.mutex("invoices"):
        refused = example(local_url, code, ok=False)
    assert refused.returncode != 0 and "another run is at work" in refused.stderr


def test_a_second_request_to_an_endpoint_is_refused(example, local_url):
    pytest.importorskip("fastapi")
    code = """
from fastapi.testclient import TestClient
import fastapi_endpoint, tenure
with TestClient(fastapi_endpoint.app) as client:
    assert client.post("/accounts/7/close").json()["closed_under"] > 0
    with tenure.connect().mutex("account/7"):
        assert client.post("/accounts/7/close").status_code == 409
        assert client.post("/accounts/8/close").status_code == 200
print("done")
"""
    assert example(local_url, code).stdout == "done\n"


def test_a_lock_goes_along_with_a_task_to_a_prefork_worker(example, redis_url, tmp_path):
    pytest.importorskip("celery")
    # The worker's parent has a client of its own before it forks.
    (tmp_path / "billing.py").write_text(
        "import os, celery_task\n"
        "from celery_task import app\n"
        "celery_task.locks.view('account/7')\n"
        "def charge(account, token): open(os.environ['CHARGED'], 'a').write(f'{account} {token} {os.getpid()}\\n')\n"
        "celery_task.charge = charge\n"
    )
    charged = tmp_path / "charged"
    env = {
        **os.environ,
        "TENURE_ENGINE": redis_url,
        "BROKER": redis_url,
        "PYTHONPATH": os.pathsep.join((str(EXAMPLES), str(tmp_path), os.environ.get("PYTHONPATH", ""))),
        "CHARGED": str(charged),
    }
    command = [sys.executable, "-m", "celery", "-A", "billing", "worker", "--pool=prefork", "--concurrency=2"]
    worker = subprocess.Popen(command, env=env, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        code = """
import celery_task
assert celery_task.request("7") and celery_task.request("8")
assert not celery_task.request("7"), "it is held until the task has run"
print("sent")
"""
        assert example(redis_url, code, broker=redis_url).stdout == "sent\n"
        locks = tenure.connect(redis_url)
        with locks.mutex("account/7", wait=60), locks.mutex("account/8", wait=60):
            lines = charged.read_text().split("\n")[:-1]
            assert sorted(line.split()[0] for line in lines) == ["7", "8"]
            assert str(worker.pid) not in [line.split()[2] for line in lines]
        locks.close()
    finally:
        worker.terminate()
        worker.communicate(timeout=60)


def test_one_scheduler_leads(example, local_url):
    pytest.importorskip("apscheduler")
    code = """
import threading, apscheduler_leader, tenure
locks = tenure.connect()
other = locks.election("scheduler").campaign()
stop = threading.Event()
thread = threading.Thread(target=apscheduler_leader.main, args=(stop,))
thread.start()
while not locks.view("scheduler").waiting: pass
assert not apscheduler_leader.runs
other.resign()
while not apscheduler_leader.runs: pass
stop.set(); thread.join()
assert locks.election("scheduler").leader() is None
print("done")
"""
    assert example(local_url, code).stdout == "done\n"


def test_a_report_is_made_once(example, local_url):
    pytest.importorskip("pandas")
    code = """
import pandas_once
loads, load = [], pandas_once.load
pandas_once.load = lambda day: loads.append(day) or load(day)
assert pandas_once.report("2026-11-24").loc["bakery", "paid"] == 7
print(len(loads))
"""
    printed = []
    threads = [threading.Thread(target=lambda: printed.append(example(local_url, code).stdout)) for _ in range(3)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert sorted(printed) == ["0\n", "0\n", "1\n"]
