"""The gradient of full-waveform inversion by deepwave, which is PyTorch's autograd with propagators of its own;
`inversion_gradient.py` starts it with deepwave's interpreter.

  python deepwave_inversion.py TASK.json

The lines that it reads and prints are those of `devito_inversion.py`.
"""

import json
import os
import sys
import time

import deepwave
import numpy as np
import torch

with open(sys.argv[1]) as file:
    task = json.load(file)
torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
arrays, steps, dt, spacing = np.load(task["model"]), task["steps"], task["dt"], task["spacing"]
guess, truth = (torch.from_numpy(arrays[name]) for name in ("guess", "model"))
phase = (np.pi * task["f0"] * (np.arange(steps + 1) * dt - task["t0"])) ** 2
# deepwave has the source with the other sign.
wavelet = torch.from_numpy(-(1 - 2 * phase) * np.exp(-phase)).float().reshape(1, 1, -1)
source, receivers = (
    torch.from_numpy((arrays[name] / spacing).round().astype(int))[None] for name in ("source", "receivers")
)


def gather(speeds):
    """p at the receivers after every step, shape (receivers, samples)."""
    return deepwave.scalar(
        speeds, spacing, dt, source_amplitudes=wavelet, source_locations=source, receiver_locations=receivers,
        accuracy=task["order"], pml_width=task["layer"], pml_freq=task["f0"], max_vel=1.001 * task["fastest"],
        courant_number=0.8,
    )[-1][0]  # fmt: skip


observed = gather(truth)
gradient, found, objective = torch.zeros(0), observed, 0.0


def whole():
    """The objective and its gradient."""
    global gradient, found, objective
    speeds = guess.clone().requires_grad_()
    found = gather(speeds)
    misfit = 0.5 * (found - observed).square().sum()
    misfit.backward()
    gradient, objective = speeds.grad, float(misfit.detach())


def seconds(call, *arguments):
    """The time of a call."""
    began = time.perf_counter()
    call(*arguments)
    return time.perf_counter() - began


gather(guess)
whole()
print(json.dumps({"version": deepwave.__version__}), flush=True)
for _ in sys.stdin:
    print(json.dumps([seconds(gather, guess), seconds(whole)]), flush=True)
np.savez(
    task["results"],
    gather=found.detach().numpy().T[1:],
    objective=objective,
    gradient=gradient.numpy().astype(np.float64),
)
