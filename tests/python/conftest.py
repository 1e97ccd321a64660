"""jax is started as tests/conftest.py has set it up: two devices, with 64-bit types."""

import jax
import support  # noqa: F401  (sets jax up)

jax.devices()
