//! Network: loopback of one's own and nothing else, four families of sockets.

use std::io::ErrorKind;
use std::net::TcpListener;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};

use serde_json::json;

use crate::place::everywhere;
use crate::verdict::NETWORK;

#[test]
fn no_other_socket_is_made() {
    everywhere("families of sockets", |place| {
        place.expect_refused(&NETWORK)
    });
}

#[test]
fn there_is_one_interface_and_no_way_out() {
    everywhere("interfaces", |place| {
        let (facts, control) = place.facts();
        assert_eq!(facts["interfaces"], json!(["lo"]));
        assert_eq!(facts["links"], json!(["lo"]));
        assert_eq!(facts["routes"], json!([]));
        // A host without a network has no route either; that the numbers differ is enough.
        assert_ne!(facts["namespaces"]["net"], control["namespaces"]["net"]);
    });
}

/// Opens each address and prints what came of it.
const CONNECT: &str = r#"
import errno, json, socket
told = {}
def attempt(name, family, address, kind=socket.SOCK_STREAM):
    try:
        with socket.socket(family, kind) as s:
            s.settimeout(5)
            s.connect(address)
        told[name] = 'done'
    except OSError as e:
        told[name] = errno.errorcode.get(e.errno, repr(e))
attempt('tcp', socket.AF_INET, ('127.0.0.1', PORT))
attempt('abstract', socket.AF_UNIX, '\0NAME')
attempt('path', socket.AF_UNIX, 'PATH')
if INSIDE:
    attempt('tcp 6', socket.AF_INET6, ('::1', PORT))
    attempt('metadata', socket.AF_INET, ('169.254.169.254', 80))
    attempt('metadata 6', socket.AF_INET6, ('fd00:ec2::254', 80))
    attempt('user networks of engines', socket.AF_INET, ('10.0.2.2', 80))
    attempt('elsewhere', socket.AF_INET, ('192.0.2.1', 53), socket.SOCK_DGRAM)
    attempt('all of the link', socket.AF_INET, ('224.0.0.1', 53), socket.SOCK_DGRAM)
    for name in ['example.com', 'host.containers.internal', 'host.docker.internal']:
        try:
            socket.getaddrinfo(name, 80)
            told[name] = 'done'
        except socket.gaierror as e:
            told[name] = 'no address'
told['seen'] = 'NAME' in open('/proc/net/unix').read()
print(json.dumps(told))
"#;

/// The same by what R has: a socket of its own, which tells no errno, and a shell.
const CONNECT_R: &str = r#"
opens <- function() tryCatch({
    close(suppressWarnings(socketConnection("127.0.0.1", PORT, blocking = TRUE, timeout = 5)))
    "done"
}, error = function(e) "refused")
said <- suppressWarnings(system2("bash", c("-c", shQuote("exec 3<>/dev/tcp/127.0.0.1/PORT")), stdout = TRUE, stderr = TRUE))

cat(opens(), any(grepl("Connection refused", said)), "\n")
"#;

#[test]
fn there_is_no_network_and_no_socket_of_the_host() {
    everywhere("network in a sandbox", |place| {
        let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
        let name = format!("forge-test-{}", std::process::id());
        let abstract_one =
            UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
        let path = place.home.file("place", "").with_file_name("socket");
        let named = UnixListener::bind(&path).unwrap();
        tcp.set_nonblocking(true).unwrap();
        for listener in [&abstract_one, &named] {
            listener.set_nonblocking(true).unwrap();
        }
        let port = tcp.local_addr().unwrap().port().to_string();
        let program = |inside: &str| {
            CONNECT
                .replace("PORT", &port)
                .replace("NAME", &name)
                .replace("PATH", path.to_str().unwrap())
                .replace("INSIDE", inside)
        };
        let told = place.inside("connect.py", &program("True"));
        let expected = json!({
            "tcp": "ECONNREFUSED",
            "abstract": "ECONNREFUSED",
            "path": "ENOENT",
            "tcp 6": told["tcp 6"],
            "metadata": "ENETUNREACH",
            "metadata 6": told["metadata 6"],
            "user networks of engines": "ENETUNREACH",
            "elsewhere": "ENETUNREACH",
            "all of the link": "ENETUNREACH",
            "example.com": "no address",
            "host.containers.internal": "no address",
            "host.docker.internal": "no address",
            "seen": false,
        });
        assert_eq!(told, expected);
        // A host without IPv6 has not even the address.
        let without = ["EADDRNOTAVAIL", "EAFNOSUPPORT", "ENETUNREACH"];
        let v6 = told["tcp 6"].as_str().unwrap();
        assert!(v6 == "ECONNREFUSED" || without.contains(&v6), "{v6}");
        let v6 = told["metadata 6"].as_str().unwrap();
        assert!(without.contains(&v6), "{v6}");
        let told = place.printed("connect.R", &CONNECT_R.replace("PORT", &port));
        assert_eq!(told, "refused TRUE \n");
        let nobody = |kind: Option<ErrorKind>| assert_eq!(kind, Some(ErrorKind::WouldBlock));
        nobody(tcp.accept().err().map(|e| e.kind()));
        nobody(abstract_one.accept().err().map(|e| e.kind()));
        nobody(named.accept().err().map(|e| e.kind()));

        let control = place.outside("connect.py", &program("False"));
        for address in ["tcp", "abstract", "path"] {
            assert_eq!(control[address], "done", "{control:#}");
        }
        assert_eq!(control["seen"], true);
        tcp.accept().unwrap();
        abstract_one.accept().unwrap();
        named.accept().unwrap();
        let told = place.printed_outside("connect.R", &CONNECT_R.replace("PORT", &port), &[]);
        assert_eq!(told, "done FALSE \n");
        tcp.accept().unwrap();
    });
}

/// What neighbours do not find of each other (`traces`), a program finds of itself; the loopback
/// interface is there for that.
#[test]
fn a_program_may_talk_to_itself() {
    everywhere("loopback in a sandbox", |place| {
        let code = format!("{}{}", crate::traces::SHOW, crate::traces::LOOK);
        let expected = json!({
            "inet": "done",
            "unix": "done",
            "files": ["mine", "mine", "mine"],
            "processes": 2,
        });
        assert_eq!(place.result(&code), expected);
    });
}
