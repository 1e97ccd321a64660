"""The command `hpcstencil`, and `python -m hpcstencil`: the steps that must come before any slow import."""

import sys

from hpcstencil.runtime import signals, standard_streams


def start() -> None:
    """Run the command line as a process."""
    standard_streams.secure()
    is_run = sys.argv[1:2] == ["run"] or sys.argv[1:3] == ["sweep", "run"]
    if is_run:
        signals.note()  # the others end as any program does
    from hpcstencil import cli

    try:
        cli.start()
    except SystemExit as leaving:
        if not leaving.code and not is_run and (why := standard_streams.unread()):
            sys.exit(cli.tell(f"hpcstencil: cannot write standard output: {why}; give it a place that takes it", 4))
        raise


if __name__ == "__main__":
    start()
