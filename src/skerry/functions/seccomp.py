"""The system calls that the user's code may not make, as a program for the kernel's filter.

What is named here is refused; everything else is allowed. A worker has but its socket to the host,
so the list is of what reaches beyond it: other processes, sockets, mounts, the clock, the kernel's
own doors. Files are Landlock's matter, but for what it does not cover: mode, owner, times and
attributes, which could be changed of files that the code may not even read.
"""

from __future__ import annotations

import errno
import platform
import struct

_X86, _ARM = 0xC000003E, 0xC00000B7
_ARCHES = {"x86_64": (_X86, 0), "aarch64": (_ARM, 1), "arm64": (_ARM, 1)}

# Numbers on x86_64 and on aarch64; -1: there is none.
_REFUSED = {
    # to start processes and programs
    "fork": (57, -1), "vfork": (58, -1), "execve": (59, 221), "execveat": (322, 281),
    # to get at others
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271),
    "process_madvise": (440, 440), "process_mrelease": (448, 448), "kcmp": (312, 272),
    "pidfd_open": (434, 434), "pidfd_getfd": (438, 438), "pidfd_send_signal": (424, 424),
    "tkill": (200, 130), "rt_sigqueueinfo": (129, 138), "rt_tgsigqueueinfo": (297, 240),
    "setpriority": (141, 140), "ioprio_set": (251, 30), "sched_setparam": (142, 118),
    "sched_setscheduler": (144, 119), "sched_setattr": (314, 274), "sched_setaffinity": (203, 122),
    "migrate_pages": (256, 238), "move_pages": (279, 239),
    # to change what Landlock does not guard of a file
    "chmod": (90, -1), "fchmod": (91, 52), "fchmodat": (268, 53), "fchmodat2": (452, 452),
    "chown": (92, -1), "fchown": (93, 55), "lchown": (94, -1), "fchownat": (260, 54),
    "utime": (132, -1), "utimes": (235, -1), "futimesat": (261, -1), "utimensat": (280, 88),
    "setxattr": (188, 5), "lsetxattr": (189, 6), "fsetxattr": (190, 7), "setxattrat": (463, 463),
    "removexattr": (197, 14), "lremovexattr": (198, 15), "fremovexattr": (199, 16),
    "removexattrat": (466, 466), "file_setattr": (469, 469),
    # memory that the limit does not count
    "shmget": (29, 194), "memfd_secret": (447, 447), "semget": (64, 190), "msgget": (68, 186),
    "mq_open": (240, 180),
    # mounts and namespaces
    "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41), "chroot": (161, 51),
    "unshare": (272, 97), "setns": (308, 268), "open_tree": (428, 428), "move_mount": (429, 429),
    "fsopen": (430, 430), "fsconfig": (431, 431), "fsmount": (432, 432), "fspick": (433, 433),
    "mount_setattr": (442, 442), "name_to_handle_at": (303, 264), "open_by_handle_at": (304, 265),
    "quotactl": (179, 60), "quotactl_fd": (443, 443), "fanotify_init": (300, 262),
    # the kernel's doors
    "bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282),
    "keyctl": (250, 219), "add_key": (248, 217), "request_key": (249, 218),
    "kexec_load": (246, 104), "kexec_file_load": (320, 294), "init_module": (175, 105),
    "finit_module": (313, 273), "delete_module": (176, 106), "reboot": (169, 142),
    "swapon": (167, 224), "swapoff": (168, 225), "acct": (163, 89), "syslog": (103, 116),
    "settimeofday": (164, 170), "clock_settime": (227, 112), "clock_adjtime": (305, 266),
    "adjtimex": (159, 171), "sethostname": (170, 161), "setdomainname": (171, 162),
    "iopl": (172, -1), "ioperm": (173, -1), "modify_ldt": (154, -1), "vhangup": (153, 58),
    "personality": (135, 92), "lookup_dcookie": (212, 18), "nfsservctl": (180, 42),
}  # fmt: skip
_ABSENT = {
    # Libraries do without these where the kernel is too old for them. The filter could not look
    # into the arguments of the first; the rings' work would pass it by; the last is memory that the
    # limit does not count.
    "clone3": (435, 435),
    "io_uring_setup": (425, 425), "io_uring_enter": (426, 426), "io_uring_register": (427, 427),
    "memfd_create": (319, 279),
}  # fmt: skip
_CLONE, _SOCKET, _KILL, _TGKILL = (56, 220), (41, 198), (62, 129), (234, 131)
_PRLIMIT, _MMAP, _IOCTL = (302, 261), (9, 222), (16, 29)
_SET_FLAGS = (0x40086602, 0x40046602, 0x401C5820)
"""What `chattr` asks of a file, in its three forms."""

_CLONE_THREAD = 0x00010000
_SHARED_ANONYMOUS = 0x01 | 0x20
_INET, _INET6 = 2, 10

_LOAD, _EQUAL, _AND, _AT_LEAST, _RETURN = 0x20, 0x15, 0x54, 0x35, 0x06
_ALLOW, _ERRNO, _KILL_PROCESS = 0x7FFF0000, 0x00050000, 0x80000000
_NUMBER, _ARCH, _ARGUMENTS = 0, 4, 16


def program(pid: int, *, network: bool) -> bytes | None:
    """The filter for process `pid`; None on a machine that it is not made for."""
    if platform.machine() not in _ARCHES or struct.calcsize("P") != 8:
        return None
    arch, column = _ARCHES[platform.machine()]
    code: list[tuple[int, int, int, int]] = [
        (_LOAD, 0, 0, _ARCH),
        (_EQUAL, 1, 0, arch),
        (_RETURN, 0, 0, _KILL_PROCESS),
        (_LOAD, 0, 0, _NUMBER),
    ]
    if arch == _X86:
        # The calls of the x32 interface have other numbers.
        code += [(_AT_LEAST, 0, 1, 0x40000000), (_RETURN, 0, 0, _refuse(errno.ENOSYS))]
    for calls, number in ((_REFUSED, errno.EPERM), (_ABSENT, errno.ENOSYS)):
        for columns in calls.values():
            if columns[column] >= 0:
                code += [(_EQUAL, 0, 1, columns[column]), (_RETURN, 0, 0, _refuse(number))]
    refuse, allow = (_RETURN, 0, 0, _refuse(errno.EPERM)), (_RETURN, 0, 0, _ALLOW)
    code += _call(_CLONE[column], [
        _argument(0), (_AND, 0, 0, _CLONE_THREAD), (_EQUAL, 0, 1, _CLONE_THREAD), allow, refuse,
    ])  # fmt: skip
    for call in (_KILL, _TGKILL):
        code += _call(call[column], [_argument(0), (_EQUAL, 0, 1, pid), allow, refuse])
    code += _call(_PRLIMIT[column], [
        _argument(0), (_EQUAL, 1, 0, 0), (_EQUAL, 0, 1, pid), allow, refuse,
    ])  # fmt: skip
    code += _call(_MMAP[column], [
        _argument(3), (_AND, 0, 0, _SHARED_ANONYMOUS), (_EQUAL, 0, 1, _SHARED_ANONYMOUS),
        refuse, allow,
    ])  # fmt: skip
    first, second, third = _SET_FLAGS
    code += _call(_IOCTL[column], [
        _argument(1), (_EQUAL, 2, 0, first), (_EQUAL, 1, 0, second), (_EQUAL, 0, 1, third),
        refuse, allow,
    ])  # fmt: skip
    inet = [(_EQUAL, 1, 0, _INET), (_EQUAL, 0, 1, _INET6), allow] if network else []
    code += _call(_SOCKET[column], [_argument(0), *inet, refuse])
    code.append(allow)
    return b"".join(struct.pack("=HBBI", *each) for each in code)


def _refuse(number: int) -> int:
    return _ERRNO | number


def _argument(number: int) -> tuple[int, int, int, int]:
    """Load the lower half of an argument; both machines have it first."""
    return (_LOAD, 0, 0, _ARGUMENTS + 8 * number)


def _call(number: int, decide: list[tuple[int, int, int, int]]) -> list[tuple[int, int, int, int]]:
    """Decide about one call, which every way through `decide` does."""
    return [(_EQUAL, 0, len(decide), number), *decide]
