"""What every `python -m PACKAGE` here does around its command: its exit code, and two ends that are no fault of it.

A reader of the output that goes away (`| head`) ends the command as the shell expects it, with code 141 and no words:
128 + SIGPIPE. SIGPIPE itself stays ignored, as Python has it, since it would come from sockets too. A package that is
not installed is one sentence that names the extra to install, and code 2.
"""

import io
import os
import signal
import sys
from collections.abc import Callable
from typing import NoReturn

from data.extras import EXTRAS, missing_package

EXIT_USAGE, EXIT_READER_GONE = 2, 128 + signal.SIGPIPE


class Output(io.TextIOWrapper):
    """Standard output that ends the process where nobody reads it any longer.

    It raises SystemExit, not BrokenPipeError, which is an OSError: those are answered with sentences about files.
    """

    reader_gone = False

    def write(self, text: str, /) -> int:
        try:
            return super().write(text)
        except BrokenPipeError:
            self._end()

    def flush(self) -> None:
        try:
            super().flush()
        except BrokenPipeError:
            self._end()

    def _end(self) -> NoReturn:
        self.reader_gone = True
        nowhere = os.open(os.devnull, os.O_WRONLY)  # what is still buffered must go somewhere
        os.dup2(nowhere, self.fileno())
        os.close(nowhere)
        raise SystemExit(EXIT_READER_GONE)


def run_command(main: Callable[[], int]) -> NoReturn:
    """End the process with `main`'s exit code."""
    given = sys.stdout
    if not isinstance(given, io.TextIOWrapper):  # closed, or somebody's own
        sys.exit(main())
    sys.stdout = output = Output(
        given.buffer, given.encoding, given.errors, None, given.line_buffering, given.write_through
    )
    try:
        try:
            code = main()
        finally:
            output.flush()
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in EXTRAS:
            raise
        print(f"error: {missing_package(error)}", file=sys.stderr)
        code = EXIT_USAGE
    # A thread that prints (a progress bar) may have met it first.
    sys.exit(EXIT_READER_GONE if output.reader_gone else code)
