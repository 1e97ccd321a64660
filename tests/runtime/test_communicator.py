"""The collective operations of a communicator that are made of messages, on any number of processes; threads play these."""

from collections import defaultdict
from queue import Queue
from threading import Thread

import numpy as np
import pytest

from hpcstencil.runtime.communicator import MpiProcesses, OneProcess, agree
from hpcstencil.validation.errors import EnvironmentProblem, InputError


class Messages:
    """An mpi4py communicator of one of ``size`` threads. ``sent`` counts the messages of each rank."""

    def __init__(self, rank, size, queues, sent):
        self.rank, self.size, self.queues, self.sent = rank, size, queues, sent

    def Get_rank(self):
        return self.rank

    def Get_size(self):
        return self.size

    def send(self, value, dest):
        self.sent[self.rank] += 1
        self.queues[self.rank, dest].put(value)

    def recv(self, source):
        return self.queues[source, self.rank].get(timeout=20)

    def bcast(self, value, root):
        if self.rank == root:
            for rank in range(self.size):
                self.queues["bcast", rank].put(value)
        return self.queues["bcast", self.rank].get(timeout=20)

    def Allreduce(self, values, result, op):
        for rank in range(self.size):
            self.queues["reduce", rank].put(values)
        everyone = [self.queues["reduce", self.rank].get(timeout=20) for _ in range(self.size)]
        result[...] = np.max(everyone, axis=0)


def on_all(size, action):
    """The results of an action on every rank, and the number of messages that each sent."""
    queues, sent, results = defaultdict(Queue), defaultdict(int), [None] * size
    for key in [(a, b) for a in (*range(size), "bcast", "reduce") for b in range(size)]:
        _ = queues[key]

    def act(rank):
        try:
            results[rank] = action(MpiProcesses(Messages(rank, size, queues, sent)))
        except (EnvironmentProblem, InputError) as error:
            results[rank] = error

    threads = [Thread(target=act, args=[rank]) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return results, sent


SIZES = [*range(2, 10), 16, 17, 31]


@pytest.mark.parametrize("size", SIZES)
def test_gather_is_by_rank_and_a_tree(size):
    results, sent = on_all(size, lambda c: c.gather(f"of {c.rank}"))
    assert results == [[f"of {rank}" for rank in range(size)], *[None] * (size - 1)]
    assert sum(sent.values()) == size - 1 and max(sent.values()) == 1


@pytest.mark.parametrize("size", SIZES)
def test_scatter_is_by_rank_and_a_tree(size):
    results, sent = on_all(size, lambda c: c.scatter([f"for {n}" for n in range(size)] if c.rank == 0 else None))
    assert results == [f"for {rank}" for rank in range(size)]
    assert sum(sent.values()) == size - 1 and max(sent.values()) == (size - 1).bit_length()


@pytest.mark.parametrize("size", [1, 2, 7])
def test_ranks_that_are_alike(size):
    if size == 1:
        assert OneProcess().alike("a") == [0]
        return
    results, _ = on_all(size, lambda c: c.alike("even" if c.rank % 2 == 0 else "odd"))
    assert results == [list(range(rank % 2, size, 2)) for rank in range(size)]


@pytest.mark.parametrize("failing", [[], [0], [3], [1, 2], [4, 0]], ids=str)
def test_the_error_of_the_lowest_rank_is_raised_on_all(failing):
    def action(communicator):
        def part():
            if communicator.rank in failing:
                raise InputError("wrong") if communicator.rank % 2 else EnvironmentProblem("missing")
            return communicator.rank

        return agree(communicator, part)

    results, _ = on_all(5, action)
    if not failing:
        assert results == list(range(5))
        return
    lowest = min(failing)
    said = "wrong" if lowest % 2 else "missing"
    assert {str(error) for error in results} == {said if lowest == 0 else f"rank {lowest}: {said}"}
    assert {type(error) for error in results} == {InputError if lowest % 2 else EnvironmentProblem}
