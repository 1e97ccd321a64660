"""The value of an objective and its gradient: the run forwards, then its steps in reverse."""
