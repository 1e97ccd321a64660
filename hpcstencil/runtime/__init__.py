"""Processes, devices, file system, signals, watchdog. Imports nothing here: the monitor starts fast."""
