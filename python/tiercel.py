# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The interface by which Python programs describe themselves to Tiercel.

    import tiercel

    tiercel.phase("assemble")           # until the next call
    with tiercel.in_phase("solve"):     # then the phase before continues
        ...
    with tiercel.numpy_space("high-bandwidth"):
        field = numpy.zeros(10**8)      # born there, for as long as it lives

Without `tiercel run` nothing happens. Nothing has to be installed beside this file.
"""

import contextlib
import ctypes

__all__ = ["in_phase", "is_hosted", "numpy_space", "phase"]

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
    """Begins a phase, which lasts until the next call. Equal names are one phase."""
    global _current
    encoded = name.encode()
    if b"\0" in encoded:
        raise ValueError("a phase's name has no NUL in it")
    _current = name
    if _phase is not None:
        _phase(encoded)


@contextlib.contextmanager
def in_phase(name):
    """A phase for the length of a `with` block. Not per thread: a process is in one phase."""
    before = _current
    phase(name)
    try:
        yield
    finally:
        phase(before)


# Values of enum tiercel_space.
_SPACES = {"high-bandwidth": 1, "low-latency": 2, "large-capacity": 3}

# Where NumPy's table of C functions has PyDataMem_SetHandler, since 1.22 and in 2.x (NEP 49).
_SET_HANDLER = 304


class _Allocator(ctypes.Structure):
    """PyDataMemAllocator: the context is the first argument of each call; here it is a space."""

    _fields_ = [(name, ctypes.c_void_p) for name in ("ctx", "malloc", "calloc", "realloc", "free")]


class _Handler(ctypes.Structure):
    """PyDataMem_Handler."""

    _fields_ = [
        ("name", ctypes.c_char * 127),
        ("version", ctypes.c_uint8),
        ("allocator", _Allocator),
    ]


# (handler, capsule) by space. Arrays free their memory by the handler that allocated it, so
# handlers are never freed.
_handlers = {}


def _handler(space):
    """The capsule NumPy takes, or None where there is no runtime."""
    if space not in _handlers:
        names = ("malloc", "calloc", "realloc", "free")
        found = [_find("tiercel_space_" + name, None) for name in names]
        if None in found:
            return None
        addresses = [ctypes.cast(function, ctypes.c_void_p).value for function in found]
        handler = _Handler(b"tiercel", 1, _Allocator(_SPACES[space], *addresses))
        new = ctypes.pythonapi.PyCapsule_New
        new.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        new.restype = ctypes.py_object
        _handlers[space] = handler, new(ctypes.addressof(handler), b"mem_handler", None)
    return _handlers[space][1]


def _set_handler():
    """NumPy's PyDataMem_SetHandler."""
    try:
        from numpy._core import _multiarray_umath as core
    except ImportError:
        from numpy.core import _multiarray_umath as core
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
    pointer.restype = ctypes.POINTER(ctypes.c_void_p)
    if not hasattr(core, "get_handler_name"):
        raise RuntimeError("NumPy 1.22 or later is needed: earlier ones have no memory handlers")
    table = pointer(core._ARRAY_API, None)
    return ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.py_object)(table[_SET_HANDLER])


@contextlib.contextmanager
def numpy_space(space):
    """Arrays made in the `with` block are born in a space: "high-bandwidth", "low-latency" or
    "large-capacity". For the thread, or the asynchronous task, that runs the block."""
    if space not in _SPACES:
        raise ValueError(f"{space!r} is no space: " + ", ".join(_SPACES))
    capsule = _handler(space)
    if capsule is None:
        yield
        return
    set_handler = _set_handler()
    before = set_handler(capsule)
    try:
        yield
    finally:
        set_handler(before)


def is_hosted():
    """True when the runtime is loaded and attached to a daemon."""
    return _is_hosted is not None and bool(_is_hosted())
