# Attempts on the barrier `network`. `attempts.py` is put before it.

STREAM, DATAGRAM, RAW, RDM, SEQPACKET, DCCP, PACKET = 1, 2, 3, 4, 5, 6, 10
# Family, number, the type that it has, a protocol.
FAMILIES = {
    "ax25": (3, SEQPACKET, 0),
    "ipx": (4, DATAGRAM, 0),
    "appletalk": (5, DATAGRAM, 0),
    "x25": (9, SEQPACKET, 0),
    "key": (15, RAW, 2),
    "packet": (17, RAW, 0),
    "packet, all frames": (17, DATAGRAM, 0x0300),
    "rds": (21, SEQPACKET, 0),
    "pppox": (24, DATAGRAM, 0),
    "llc": (26, DATAGRAM, 0),
    "ib": (27, STREAM, 0),
    "can": (29, RAW, 1),
    "tipc": (30, RDM, 0),
    "bluetooth": (31, RAW, 1),
    "iucv": (32, STREAM, 0),
    "rxrpc": (33, DATAGRAM, 2),
    "phonet": (35, DATAGRAM, 0),
    "ieee802154": (36, RAW, 0),
    "caif": (37, STREAM, 0),
    "alg": (38, SEQPACKET, 0),
    "nfc": (39, RAW, 0),
    "vsock": (40, STREAM, 0),
    "vsock, datagrams": (40, DATAGRAM, 0),
    "kcm": (41, DATAGRAM, 0),
    "qipcrtr": (42, DATAGRAM, 0),
    "smc": (43, STREAM, 0),
    "xdp": (44, RAW, 0),
    "mctp": (45, DATAGRAM, 0),
    "unknown": (60, STREAM, 0),
}
INET, INET6, UNIX, NETLINK = 2, 10, 1, 16
OTHERS = {
    "raw icmp": (INET, RAW, 1),
    "raw icmp, version 6": (INET6, RAW, 58),
    "raw ip": (INET, RAW, 255),
    "raw udp": (INET, RAW, 17),
    "raw tcp, version 6": (INET6, RAW, 6),
    "ping": (INET, DATAGRAM, 1),
    "ping, version 6": (INET6, DATAGRAM, 58),
    "sctp": (INET, STREAM, 132),
    "sctp packets": (INET, SEQPACKET, 132),
    "multipath": (INET, STREAM, 262),
    "dccp": (INET, DCCP, 33),
    "udp lite": (INET, DATAGRAM, 136),
    "l2tp": (INET, DATAGRAM, 115),
    "of type packet": (INET, PACKET, 0),
    "unix raw": (UNIX, RAW, 0),
    "unix packet": (UNIX, PACKET, 0),
}
for number, name in {
    1: "unused",
    2: "usersock",
    3: "firewall",
    4: "sock_diag",
    5: "nflog",
    6: "xfrm",
    7: "selinux",
    8: "iscsi",
    9: "audit",
    10: "fib_lookup",
    11: "connector",
    12: "netfilter",
    14: "dnrtmsg",
    15: "kobject_uevent",
    16: "generic",
    18: "scsi",
    19: "ecryptfs",
    20: "rdma",
    21: "crypto",
    22: "smc",
    31: "beyond",
}.items():
    OTHERS[f"netlink {name}"] = (NETLINK, RAW, number)
OTHERS["netlink audit, datagrams"] = (NETLINK, DATAGRAM, 9)

# Refused before the kernel looks for the family. Outside it makes the socket or says EAFNOSUPPORT.
for name, (family, kind, protocol) in [*FAMILIES.items(), *OTHERS.items()]:
    simple("socket", family, kind, protocol, label=f"socket {name}")
    simple("socket", family, kind | 0o2004000, protocol, label=f"socket {name}, with flags")
    # The kernel reads the low halves, so a filter that compares whole registers is passed by.
    simple("socket", family | HIGH, kind, protocol, label=f"socket {name}, high bit of the family")
    simple("socket", family | HIGH, kind | HIGH, protocol | HIGH, label=f"socket {name}, all high bits")
    if protocol:
        simple("socket", family, kind, protocol | HIGH, label=f"socket {name}, high bit of the protocol")
    if X86:
        words = (family, kind, protocol)
        foreign("socket", *words, label=f"socket {name}")
        attempt(f"int 0x80 socketcall {name}", "SIGSYS")(
            lambda words=words: i386("socketcall", 1, AT, data=struct.pack("<3I", *words))
        )
two = (ctypes.c_int * 2)()
for name, (family, kind) in {
    "tipc": (30, RDM),
    "inet": (INET, STREAM),
    "alg": (38, SEQPACKET),
    "vsock": (40, STREAM),
    "netlink": (NETLINK, RAW),
    "unix raw": (UNIX, RAW),
}.items():
    simple("socketpair", family, kind, 0, two, label=f"socketpair {name}")
    simple("socketpair", family | HIGH, kind, 0, two, label=f"socketpair {name}, high bit")

# -- the own network stays as it is
lo = b"lo" + bytes(14)


def interface(request, tail=bytes(24)):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        fcntl.ioctl(s, request, lo + tail)


attempt("take lo down")(lambda: interface(0x8914))
attempt("rename lo")(lambda: interface(0x8923, b"other" + bytes(19)))
attempt("address of lo")(lambda: interface(0x8916, struct.pack("<HH4s16x", 2, 0, b"\x7f\0\0\1")))
attempt("make a bridge", "EPERM")(lambda: bridge())


def bridge():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        fcntl.ioctl(s, 0x89A0, b"forge0" + bytes(10))


def netlink(kind, body):
    """What the kernel answers to a request over the one protocol that is there."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as s:
        request_ack_create = 0x1 | 0x4 | 0x400
        s.send(struct.pack("<IHHII", 16 + len(body), kind, request_ack_create, 1, 0) + body)
        answer = s.recv(4096)
    (error,) = struct.unpack_from("<i", answer, 16)
    if error:
        raise OSError(-error, "refused")


attempt("new interface")(
    lambda: netlink(
        16,
        struct.pack("<BxHiII", 0, 0, 0, 0, 0)
        + struct.pack("<HH8s", 12, 3, b"forge0\0")
        + struct.pack("<HHHH8s", 16, 18, 12, 1, b"dummy\0"),
    )
)
attempt("new address")(
    lambda: netlink(20, struct.pack("<BBBBI", 2, 8, 0, 0, 1) + struct.pack("<HH4s", 8, 2, b"\x7f\0\0\2"))
)
attempt("new route")(
    lambda: netlink(
        24,
        struct.pack("<BBBBBBBBI", 2, 32, 0, 0, 254, 3, 253, 1, 0)
        + struct.pack("<HH4s", 8, 1, b"\xc0\0\2\1")
        + struct.pack("<HHI", 8, 4, 1),
    )
)
attempt("namespaces of others")(
    lambda: netlink(
        88,
        struct.pack("<B3x", 0)
        + struct.pack("<HHI", 8, 1, 5)
        + struct.pack("<HHI", 8, 2, 1 if not CONTROL else os.getpid()),
    )
)
tell()
