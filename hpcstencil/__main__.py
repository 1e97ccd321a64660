"""Entry point of `hpcstencil` and `python -m hpcstencil`, with the steps that must precede slow imports."""

import sys

from hpcstencil.runtime import signals, standard_streams


def start() -> None:
    """Run the command line, and end the process with its exit status."""
    standard_streams.secure()
    is_run = sys.argv[1:2] == ["run"] or sys.argv[1:3] == ["sweep", "run"]
    if is_run:
        signals.note()  # other commands end on a signal, as usual
    from hpcstencil import cli

    try:
        cli.start()
    except SystemExit as leaving:
        if not leaving.code:
            signals.ignore()  # all is done: a signal that comes while Python shuts down must not change the status
            if not is_run and (why := standard_streams.unread()):
                sys.exit(
                    cli.print_error(f"hpcstencil: cannot write standard output: {why}; redirect it to another place", 4)
                )
        raise


if __name__ == "__main__":
    start()
