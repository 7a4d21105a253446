"""The primitives, on every kind of store. Two clients, never one, for anything about exclusion."""

import asyncio
import threading

import pytest

import tenure


@pytest.fixture
def other(url):
    client = tenure.connect(url)
    yield client
    client.close()


def test_a_mutex_excludes_another_client_and_says_who_holds(locks, other, name):
    with locks.mutex(name, label="night run") as lease:
        assert lease.resource == name and lease.token > 0 and 0 < lease.expires_in() <= 30
        assert not lease.is_lost() and lease.check() is None and len(lease.claim) == 32
        assert other.mutex(name).try_acquire() is None
        with pytest.raises(tenure.Timeout) as timeout:
            other.mutex(name, wait=1).acquire()
        assert timeout.value.resource == name
        with pytest.raises(tenure.Timeout) as timeout:
            other.mutex(name, wait=0).acquire()
        assert "night run" in timeout.value.holder
        assert isinstance(timeout.value, TimeoutError)
    with other.mutex(name) as later:
        assert later.token > lease.token
    with pytest.raises(tenure.Lost):
        lease.check()
    assert lease.release() is False, "it was released"


def test_a_released_lock_goes_to_who_waits(locks, other, name):
    first = locks.mutex(name).acquire()
    got = []

    def wait():
        with other.mutex(name) as lease:
            got.append(lease.token)

    thread = threading.Thread(target=wait)
    thread.start()
    while not (locks.view(name) and locks.view(name).waiting):
        pass
    assert first.release() is True
    thread.join(20)
    assert got and got[0] > first.token


def test_readers_share_and_a_writer_does_not(locks, other, name):
    with locks.rw_lock(name).read, other.rw_lock(name).read as second:
        assert second.token
        assert other.rw_lock(name).write.try_acquire() is None
    with locks.rw_lock(name).write:
        assert other.rw_lock(name).read.try_acquire() is None


def test_a_semaphore_counts_units_and_refuses_another_capacity(locks, other, name):
    with locks.semaphore(name, 3, weight=2):
        assert other.semaphore(name, 3, weight=2).try_acquire() is None
        with other.semaphore(name, 3):
            pass
        with pytest.raises(tenure.Conflict) as conflict:
            other.semaphore(name, 4).try_acquire()
        assert conflict.value.hint


def test_a_slot_has_a_number_of_its_own(locks, other, name):
    with locks.slot_pool(name, 2) as one, other.slot_pool(name, 2) as two:
        assert {one.number, two.number} == {0, 1}
        assert locks.slot_pool(name, 2, wait=0).try_acquire() is None


def test_several_are_taken_all_or_none(locks, other, name):
    a, b = locks.mutex(name + "/a"), locks.slot_pool(name + "/b", 2)
    with locks.all(a, b) as leases:
        assert len(leases) == 2 and leases[name + "/b"].number is not None
        assert {part.resource for part in leases} == {name + "/a", name + "/b"}
        assert other.all(other.mutex(name + "/a"), other.mutex(name + "/c")).try_acquire() is None
        with other.any(other.mutex(name + "/a"), other.mutex(name + "/c")) as one:
            assert one.resource == name + "/c"
    with other.mutex(name + "/a", wait=5):
        pass


def test_a_pool_that_is_named_more_than_once_gives_so_many_slots(locks, other, name):
    pool = locks.slot_pool(name, 3)
    with locks.all(pool, pool) as leases:
        assert len({part.number for part in leases}) == len(leases) == 2
        theirs = other.slot_pool(name, 3)
        assert other.all(theirs, theirs).try_acquire() is None
        with theirs:
            pass
    with pytest.raises(tenure.Invalid):
        locks.all(pool, pool, pool, pool).acquire()


def test_a_leader_is_known_to_everybody(locks, other, name):
    election = locks.election(name, label="first")
    assert other.election(name).leader() is None
    with election as term:
        term.publish(b"10.0.0.7:8080")
        leader = other.election(name).leader()
        assert leader.value == b"10.0.0.7:8080" and leader.token == term.token and "first" in leader.label
        assert next(other.election(name).changes()).token == term.token
        assert other.election(name).try_campaign() is None
    assert other.election(name).leader() is None
    with other.election(name).campaign() as second:
        assert second.token > term.token


def test_a_value_is_loaded_once_for_all(locks, other, name):
    loads = []

    def load():
        loads.append(1)
        return b"17.50"

    assert locks.single_flight(name).get(load)[:2] == (b"17.50", "loaded")
    assert other.single_flight(name).get(load)[:2] == (b"17.50", "fresh")
    assert other.single_flight(name).refresh(load).source == "loaded"
    locks.single_flight(name).forget()
    assert other.single_flight(name).get(load).source == "loaded"
    assert len(loads) == 3


def test_a_failed_load_is_its_callers_and_another_one_loads(locks, other, name):
    def fail():
        raise KeyError("no rates today")

    with pytest.raises(KeyError):
        locks.single_flight(name).get(fail)
    assert other.single_flight(name).get(lambda: b"1").source == "loaded"


def test_the_results_of_a_function_are_loaded_once_for_each_argument(locks, name):
    calls = []

    @locks.single_flight(name + "/{currency}", fresh=60, stale=60)
    def rates(currency, day=0):
        calls.append(currency)
        return {"currency": currency, "day": day}

    assert rates("EUR") == rates("EUR") == {"currency": "EUR", "day": 0}
    assert rates("USD")["currency"] == "USD"
    assert calls == ["EUR", "USD"] and rates.__name__ == "rates"


def test_a_decorated_function_runs_under_the_lock(locks, other, name):
    @locks.mutex(name)
    def work():
        assert other.mutex(name).try_acquire() is None
        return 7

    assert work() == 7
    assert other.mutex(name).try_acquire() is not None


def test_what_is_held_is_seen_and_counted(locks, name):
    with locks.mutex(name):
        views = locks.inspect(name)
        assert [view.resource for view in views] == [name] and views[0].kind == "mutex"
        assert views[0].holds[0].held_for >= 0 and not views[0].holds[0].is_resting
        assert sum(counts["granted"] for counts in locks.counts().values()) >= 1
        assert "tenure_claims_total" in locks.metrics()
    assert locks.view(name) is None
    assert any(finding.severity == "good" for finding in locks.doctor())


def test_a_fence_refuses_who_comes_too_late(locks, name, tmp_path):
    with locks.mutex(name) as earlier:
        pass
    with locks.mutex(name) as later:
        for fence in (tenure.fence.Memory(), tenure.fence.File(tmp_path / "fence")):
            fence.check(name, later)
            fence.check(name, later)
            with pytest.raises(tenure.Stale) as stale:
                fence.check(name, earlier)
            assert stale.value.max == later.token and stale.value.hint
    assert tenure.fence.slot_key("workers", 3) == "workers#3"


@pytest.mark.parametrize(
    "wrong",
    [
        lambda locks: locks.mutex("").acquire(),
        lambda locks: locks.mutex("a", ttl=-1),
        lambda locks: locks.mutex("a", ttl=float("nan")),
        lambda locks: locks.mutex("a", ttl=1e9).acquire(),
        lambda locks: locks.all().acquire(),
        lambda locks: tenure.connect("nosuch://x").mutex("a").acquire(),
        lambda locks: locks.attach("no JSON"),
    ],
)
def test_what_cannot_be_right_is_invalid_and_has_a_hint(local_url, wrong):
    locks = tenure.connect(local_url)
    with pytest.raises(tenure.Invalid) as invalid:
        wrong(locks)
    assert invalid.value.hint and isinstance(invalid.value, ValueError)


def test_a_lock_object_serves_many_threads(locks, name):
    mutex, inside, most = locks.mutex(name), [], []

    def work():
        for _ in range(5):
            with mutex:
                inside.append(1)
                most.append(len(inside))
                inside.pop()

    threads = [threading.Thread(target=work) for _ in range(8)]
    [thread.start() for thread in threads]
    [thread.join(60) for thread in threads]
    assert most and set(most) == {1} and len(most) == 40


def test_a_lease_goes_from_one_process_to_another(shared_url, name):
    locks, other = tenure.connect(shared_url), tenure.connect(shared_url)
    lease = locks.mutex(name, ttl=20).acquire()
    detached = lease.detach()
    assert lease.is_lost() and isinstance(detached, str)
    with other.attach(detached) as attached:
        assert attached.token == lease.token and attached.expires_in() > 0
        assert locks.mutex(name).try_acquire() is None
    assert other.attach(detached) is None
    asyncio.run(_attaches_in_a_task(shared_url, locks.mutex(name, ttl=20).acquire().detach()))
    locks.close()
    other.close()


async def _attaches_in_a_task(url, detached):
    locks = tenure.connect(url)
    async with await locks.aio.attach(detached) as lease:
        lease.check()
    assert await locks.aio.attach(detached) is None
    await locks.aio.close()
