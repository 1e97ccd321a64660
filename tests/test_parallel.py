"""Work that threads of one process share."""

import pytest

from hpcstencil import parallel


@pytest.fixture(params=[1, 2, 3, 8])
def cores(request, monkeypatch):
    monkeypatch.setattr(parallel, "threads_for", lambda devices: request.param)
    parallel._helpers.cache_clear()
    yield request.param
    parallel._helpers.cache_clear()


@pytest.mark.parametrize("count", [0, 1, 2, 7, 16])
def test_threads_give_results_in_the_order_of_the_items(cores, count):
    assert parallel.by_threads(lambda n: n * n, range(count)) == [n * n for n in range(count)]


@pytest.mark.parametrize("bad", range(4))
def test_what_a_thread_raises_is_raised(cores, bad):
    with pytest.raises(ZeroDivisionError):
        parallel.by_threads(lambda n: 1 / (n - bad), range(4))
