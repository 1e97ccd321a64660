"""The run-time environment: processes, devices, file system, signals, watchdog.

This module imports nothing, so that the monitor starts fast.
"""
