# SPDX-License-Identifier: Apache-2.0 OR MIT
"""What a Python program can tell Tiercel about itself.

    import tiercel

    tiercel.phase("assemble")           # until the next call
    with tiercel.in_phase("solve"):     # and the phase before it goes on afterwards
        ...

Without `tiercel run` nothing happens. Nothing has to be installed beside this file.
"""

import contextlib
import ctypes

__all__ = ["in_phase", "is_hosted", "phase"]

_current = ""


def _find(name, argument_types, result_type=None):
    """A function of the runtime in this process, or None."""
    try:
        function = getattr(ctypes.CDLL(None), name)
    except (AttributeError, OSError):
        return None
    function.argtypes = argument_types
    function.restype = result_type
    return function


_phase = _find("tiercel_phase", [ctypes.c_char_p])
_is_hosted = _find("tiercel_is_hosted", [], ctypes.c_int)


def phase(name):
    """Says that another phase begins. The same name is the same phase."""
    global _current
    encoded = name.encode()
    if b"\0" in encoded:
        raise ValueError("a phase's name has no NUL in it")
    _current = name
    if _phase is not None:
        _phase(encoded)


@contextlib.contextmanager
def in_phase(name):
    """A phase for the length of a `with` block. Not for threads: a process is in one phase."""
    before = _current
    phase(name)
    try:
        yield
    finally:
        phase(before)


def is_hosted():
    """True when the runtime is here and a daemon listens."""
    return _is_hosted is not None and bool(_is_hosted())
