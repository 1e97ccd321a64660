"""Work that threads of one process share."""

import numpy as np
import pytest

from hpcstencil.runtime import threads


@pytest.fixture(params=[1, 2, 3, 8])
def cores(request, monkeypatch):
    monkeypatch.setattr(threads, "threads_for", lambda devices: request.param)
    threads._helpers.cache_clear()
    yield request.param
    threads._helpers.cache_clear()


@pytest.mark.parametrize("rows", [0, 1, 2, 7, 16])
def test_threads_see_each_row_once_and_in_order(cores, rows):
    first = np.arange(2 * rows).reshape(rows, 2)
    seen = threads.by_threads(lambda a, b: (a.copy(), b.copy()), first, -first)
    assert len(seen) == max(1, min(cores, rows))
    assert all(np.array_equal(a, -b) for a, b in seen)
    assert np.array_equal(np.concatenate([a for a, _ in seen]), first)


@pytest.mark.parametrize("bad", range(4))
def test_what_a_thread_raises_is_raised(cores, bad):
    with pytest.raises(ZeroDivisionError):
        threads.by_threads(lambda part: [1 // (int(n) - bad) for n in part], np.arange(4))


@pytest.mark.parametrize(
    "cores, processes, devices, expected",
    [(2, 2, 2, 2.0), (2, 4, 1, 1.0), (2, 1, 2, 1.0), (2, 1, 3, 1.5), (8, 2, 4, 1.0)],
)
def test_devices_that_share_cores_take_longer(monkeypatch, cores, processes, devices, expected):
    monkeypatch.setattr(threads.os, "sched_getaffinity", lambda _: range(cores))
    monkeypatch.setattr(threads.os, "cpu_count", lambda: cores)
    monkeypatch.setattr(threads, "local_place", lambda: (0, processes))
    assert threads.crowding(devices) == expected
