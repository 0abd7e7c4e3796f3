"""Ties the life of this process to that of the one that started it.

The kernel does it (Linux, `PR_SET_PDEATHSIG`), so it holds whatever the two are doing.
"""

import ctypes
import os
import signal

PR_SET_PDEATHSIG = 1


def end_with_parent(parent: int) -> bool:
    """From now on the kernel kills this process when the thread of the process `parent` that
    started it ends, which for the main thread is the whole parent. Whether this system can do it.
    """
    library = ctypes.CDLL(None, use_errno=True)
    if not hasattr(library, "prctl") or library.prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL)):
        return False
    if os.getppid() != parent:
        # It ended while this process was starting; nobody will be told any more.
        os.kill(os.getpid(), signal.SIGKILL)
    return True
