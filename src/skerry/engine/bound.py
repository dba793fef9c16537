"""`python bound.py PARENT PROGRAM [ARGUMENT…]`: become a program that dies with its parent.

The kernel ends a process with its parent if that process asks for it, so something has to ask
before the program begins. A `preexec_fn` could, and must not: it runs in a copy of the whole
parent, in which Python ends all threads but one, and with them what they hold. py4j, for one, shuts
down a thread's connection then, and that is the parent's: a Spark driver could lose the command
that it was waiting for when an engine was started in its process.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def bound(command: list[str]) -> list[str]:
    """How to start `command` so that it dies with this process, on Linux; elsewhere as it is. Where
    Python is part of another program, there is none to start."""
    if sys.platform != "linux" or not sys.executable or hasattr(sys, "frozen"):
        return command
    return [sys.executable, "-PsS", __file__, str(os.getpid()), *command]


def main(parent: str, *command: str) -> None:
    """See above."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(parent):
        sys.exit(1)  # it died before
    try:
        os.execv(command[0], command)  # noqa: S606
    except OSError as error:
        sys.exit(f"{command[0]} cannot be started: {error.strerror}. Is it still installed?")


if __name__ == "__main__":
    main(*sys.argv[1:])
