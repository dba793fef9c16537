"""The filter of system calls, run by a machine of ten lines for each call that matters."""

from __future__ import annotations

import errno
import platform
import struct

import pytest

from skerry.functions import seccomp

PID = 4711
ALLOWED = 0
KILLED = -1

ARCHES = [("x86_64", 0xC000003E, 0), ("aarch64", 0xC00000B7, 1)]


def decide(program: bytes, arch: int, number: int, *arguments: int) -> int:
    """What the kernel would do: 0, an errno, or KILLED."""
    padded = [*arguments, 0, 0, 0, 0, 0, 0][:6]
    data = struct.pack("=IIQ6Q", number, arch, 0, *(each & (1 << 64) - 1 for each in padded))
    code = [struct.unpack_from("=HBBI", program, at) for at in range(0, len(program), 8)]
    at = value = 0
    while True:
        kind, if_so, if_not, constant = code[at]
        at += 1
        if kind == 0x20:
            (value,) = struct.unpack_from("=I", data, constant)
        elif kind == 0x54:
            value &= constant
        elif kind == 0x15:
            at += if_so if value == constant else if_not
        elif kind == 0x35:
            at += if_so if value >= constant else if_not
        else:
            assert kind == 0x06
            if constant == 0x80000000:
                return KILLED
            return ALLOWED if constant == 0x7FFF0000 else constant & 0xFFFF


@pytest.fixture(params=ARCHES, ids=["x86_64", "aarch64"])
def machine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> tuple[int, int]:
    name, arch, column = request.param
    monkeypatch.setattr(platform, "machine", lambda: name)
    return arch, column


def made(network: bool = False) -> bytes:
    program = seccomp.program(PID, network=network)
    assert program is not None
    assert len(program) // 8 <= 4096  # what the kernel takes
    return program


def test_what_is_named_is_refused(machine: tuple[int, int]) -> None:
    arch, column = machine
    program = made()
    for calls, number in (
        (seccomp._REFUSED, errno.EPERM),
        (seccomp._ABSENT, errno.ENOSYS),
    ):
        for name, columns in calls.items():
            if columns[column] >= 0:
                assert decide(program, arch, columns[column]) == number, name


def test_what_every_program_does_is_allowed(machine: tuple[int, int]) -> None:
    arch, column = machine
    program = made()
    # read, write, close, openat, fstat, munmap, brk, futex, setitimer, exit_group, socketpair
    numbers = [(0, 63), (1, 64), (3, 57), (257, 56), (5, 80), (11, 215), (12, 214), (202, 98),
               (38, 103), (231, 94), (53, 199)]  # fmt: skip
    for columns in numbers:
        assert decide(program, arch, columns[column]) == ALLOWED, columns


def test_threads_yes_processes_no(machine: tuple[int, int]) -> None:
    arch, column = machine
    clone = seccomp._CLONE[column]
    assert decide(made(), arch, clone, 0x003D0F00) == ALLOWED  # as pthread_create does
    assert decide(made(), arch, clone, 17) == errno.EPERM
    assert decide(made(), arch, clone, 0x4000 | 0x100) == errno.EPERM


def test_signals_to_itself_only(machine: tuple[int, int]) -> None:
    arch, column = machine
    for call in (seccomp._KILL[column], seccomp._TGKILL[column]):
        assert decide(made(), arch, call, PID, 9) == ALLOWED
        for other in (1, 0, -1, -PID, PID + 1):
            assert decide(made(), arch, call, other, 9) == errno.EPERM


def test_limits_of_itself_only(machine: tuple[int, int]) -> None:
    arch, column = machine
    call = seccomp._PRLIMIT[column]
    assert [decide(made(), arch, call, pid) for pid in (0, PID, 1)] == [0, 0, errno.EPERM]


def test_memory_that_no_limit_counts(machine: tuple[int, int]) -> None:
    arch, column = machine
    call = seccomp._MMAP[column]
    for flags, decision in ((0x22, 0), (0x01, 0), (0x02, 0), (0x21, errno.EPERM)):
        assert decide(made(), arch, call, 0, 4096, 3, flags, -1, 0) == decision


def test_sockets(machine: tuple[int, int]) -> None:
    arch, column = machine
    call = seccomp._SOCKET[column]
    for family in (1, 2, 10, 16, 17):
        assert decide(made(), arch, call, family, 1) == errno.EPERM
        expected = ALLOWED if family in (2, 10) else errno.EPERM
        assert decide(made(network=True), arch, call, family, 1) == expected


def test_calls_of_another_machine(machine: tuple[int, int]) -> None:
    arch, column = machine
    assert decide(made(), 0x40000003, 0) == KILLED
    if column == 0:
        assert decide(made(), arch, 0x40000000 + 41) == errno.ENOSYS


def test_a_machine_that_it_is_not_made_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "s390x")
    assert seccomp.program(PID, network=False) is None
