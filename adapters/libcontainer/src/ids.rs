//! The range of user and group ids that the nursery's user namespace gets on the host, and the one
//! of them that each container gets.
//!
//! As root, a range that no system hands out; as an ordinary user, the subordinate range of
//! `/etc/subuid` and `/etc/subgid` (subuid(5)) through `newuidmap` and `newgidmap`.
//!
//! Much that the kernel counts, it counts for an id of the host, whatever the namespace: descriptors
//! on their way through sockets, buffers of pipes. So no two containers of a server have the same.

use mcp_forge_presentation::USER;
use std::collections::HashSet;
use std::fs;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use crate::warden::{privileged, run_id_helper};

/// The ids that servers of root use. systemd documents them as used by nobody (its `UIDS-GIDS`
/// page), so no container tool's ids and no user's overlap them; the last range is that of sandboxes on
/// Podman.
const UNUSED: std::ops::Range<u32> = 1_879_048_192..2_147_287_040;

/// How many ids the namespace gets.
const COUNT: u32 = 65_536;

/// The id of a program of the host's that works for the nursery.
pub(crate) const WORKER: u32 = 1;

/// Why there is no range, and the way out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NoRange {
    pub(crate) error: String,
    pub(crate) hint: String,
}

/// The id maps to write.
#[derive(Debug)]
pub(crate) enum Map {
    /// By root: a range of its own.
    Direct {
        base: u32,
        /// Keeps it from other servers; none if they have taken all.
        _claim: Option<UnixDatagram>,
    },
    /// By an ordinary user: itself as 0, the subordinate ranges from 1 on.
    Subordinate {
        user: u32,
        group: u32,
        uids: Range,
        gids: Range,
    },
}

/// A subordinate range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Range {
    pub(crate) start: u32,
    pub(crate) count: u32,
}

impl Map {
    /// The host's id of the namespace's root.
    pub(crate) fn root(&self) -> u32 {
        match self {
            Self::Direct { base, .. } => *base,
            Self::Subordinate { user, .. } => *user,
        }
    }

    /// The last id within the namespace.
    pub(crate) fn last(&self) -> u32 {
        match self {
            Self::Direct { .. } => COUNT - 1,
            Self::Subordinate { uids, gids, .. } => uids.count.min(gids.count).min(COUNT - 1),
        }
    }

    /// Writes the maps of process `pid`.
    pub(crate) fn write(&self, pid: u32) -> Result<(), NoRange> {
        match self {
            Self::Direct { base, .. } => {
                for file in ["uid_map", "gid_map"] {
                    fs::write(format!("/proc/{pid}/{file}"), format!("0 {base} {COUNT}\n"))
                        .map_err(|e| NoRange {
                            error: format!("cannot write {file} of the nursery: {e}"),
                            hint: "root without CAP_SETUID and CAP_SETGID cannot map ids".into(),
                        })?;
                }
                Ok(())
            }
            Self::Subordinate {
                user,
                group,
                uids,
                gids,
            } => {
                for (program, own, range) in [("newuidmap", user, uids), ("newgidmap", group, gids)]
                {
                    let arguments = [pid, 0, *own, 1, 1, range.start, range.count.min(COUNT - 1)]
                        .map(|n| n.to_string());
                    run_id_helper(program, &arguments).map_err(|e| NoRange {
                        error: format!("{program} failed: {e}"),
                        hint: "install the package uidmap (newuidmap and newgidmap, set-user-id)"
                            .into(),
                    })?;
                }
                Ok(())
            }
        }
    }
}

/// The maps for the user who runs this process.
pub(crate) fn map(user: u32) -> Result<Map, NoRange> {
    if privileged() {
        let (base, claim) = claim(std::process::id());
        return Ok(Map::Direct {
            base,
            _claim: claim,
        });
    }
    let name = nix::unistd::User::from_uid(user.into())
        .ok()
        .flatten()
        .map(|u| u.name);
    let group = nix::unistd::getgid().as_raw();
    let range = |file: &str| {
        let text = fs::read_to_string(file).unwrap_or_default();
        subordinate(&text, name.as_deref(), user).ok_or_else(|| NoRange {
            error: format!(
                "{file} gives user {} no range of at least 1001 ids",
                label(&name, user)
            ),
            hint: format!(
                "as root: usermod --add-subuids 100000-165535 --add-subgids 100000-165535 {} (and \
                 install the package uidmap)",
                label(&name, user)
            ),
        })
    };
    Ok(Map::Subordinate {
        user,
        group,
        uids: range("/etc/subuid")?,
        gids: range("/etc/subgid")?,
    })
}

/// A range that no other server has, as far as this network namespace tells; `seed` keeps those
/// elsewhere apart most of the time. Who binds the name has the range until it ends.
fn claim(seed: u32) -> (u32, Option<UnixDatagram>) {
    let ranges = (UNUSED.end - UNUSED.start) / COUNT;
    let base = |n: u32| UNUSED.start + (seed % ranges + n) % ranges * COUNT;
    let bind = |base: u32| {
        let name = SocketAddr::from_abstract_name(format!("mcp-forge-ids-{base}"))?;
        UnixDatagram::bind_addr(&name)
    };
    (0..ranges)
        .map(base)
        .find_map(|base| bind(base).ok().map(|claim| (base, Some(claim))))
        .unwrap_or_else(|| (base(0), None))
}

/// The ids of the containers within the nursery's namespace.
#[derive(Debug)]
pub(crate) struct Users {
    last: u32,
    next: u32,
    taken: HashSet<u32>,
}

impl Users {
    /// Ids up to `last`; `seed` tells where to begin, so that servers that share a range differ
    /// most of the time.
    pub(crate) fn new(last: u32, seed: u32) -> Self {
        Self {
            last,
            next: seed % (last - WORKER),
            taken: HashSet::new(),
        }
    }

    /// One that no container has, and of these one that none has had for long.
    pub(crate) fn take(&mut self) -> io::Result<u32> {
        for _ in WORKER..self.last {
            self.next = (self.next + 1) % (self.last - WORKER);
            let id = WORKER + 1 + self.next;
            if self.taken.insert(id) {
                return Ok(id);
            }
        }
        Err(io::Error::other(format!(
            "all {} ids are taken; a larger range in /etc/subuid and /etc/subgid helps",
            self.last - WORKER
        )))
    }

    /// Takes one back whose container is gone.
    pub(crate) fn give_back(&mut self, id: u32) {
        self.taken.remove(&id);
    }
}

/// Gives a process of the nursery that is in a user namespace of its own two ids there: the
/// nursery's root, and `user` as that of the container.
pub(crate) fn write_nested(pid: i32, user: u32) -> io::Result<()> {
    for file in ["uid_map", "gid_map"] {
        let map = format!("0 0 1\n{USER} {user} 1\n");
        fs::write(format!("/proc/{pid}/{file}"), map)?;
    }
    Ok(())
}

fn label(name: &Option<String>, user: u32) -> String {
    name.clone().unwrap_or_else(|| user.to_string())
}

/// The first large enough range of a user in the text of a subuid(5) file.
fn subordinate(text: &str, name: Option<&str>, user: u32) -> Option<Range> {
    text.lines().find_map(|line| {
        let mut fields = line.trim().split(':');
        let (who, start, count) = (fields.next()?, fields.next()?, fields.next()?);
        if Some(who) != name && who.parse() != Ok(user) {
            return None;
        }
        let range = Range {
            start: start.parse().ok()?,
            count: count.parse().ok()?,
        };
        // As many as there can be runs at once by default, and more.
        (range.count >= 1001 && range.start > 0).then_some(range)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_found_by_name_and_by_number() {
        let text = "# comment\nann:100000:65536\n1001:200000:65536\nbob:1:10\nbob:300000:2000\n";
        assert_eq!(
            subordinate(text, Some("ann"), 5),
            Some(Range {
                start: 100_000,
                count: 65_536
            })
        );
        assert_eq!(
            subordinate(text, None, 1001),
            Some(Range {
                start: 200_000,
                count: 65_536
            })
        );
        assert_eq!(
            subordinate(text, Some("bob"), 6),
            Some(Range {
                start: 300_000,
                count: 2000
            })
        );
        assert_eq!(subordinate(text, Some("eve"), 7), None);
        assert_eq!(subordinate("ann:x:y\nann\n", Some("ann"), 5), None);
    }

    #[test]
    fn servers_of_root_have_ranges_of_their_own() {
        let seed = std::process::id();
        let claims: Vec<_> = (0..3).map(|_| claim(seed)).collect();
        let mut bases: Vec<u32> = claims.iter().map(|(base, _)| *base).collect();
        assert!(claims.iter().all(|(_, claim)| claim.is_some()));
        assert!(
            bases
                .iter()
                .all(|base| UNUSED.contains(base) && base + COUNT <= UNUSED.end)
        );
        bases.dedup();
        assert_eq!(bases.len(), 3, "{bases:?}");
        let (first, _) = claims[0];
        drop(claims);
        assert_eq!(claim(seed).0, first, "an ended server's range is free");
    }

    #[test]
    fn no_two_containers_have_one_id() {
        let mut users = Users::new(1001, 4711);
        let all: HashSet<u32> = (0..1000).map(|_| users.take().unwrap()).collect();
        assert_eq!(all, (2..=1001).collect());
        assert!(users.take().is_err());
        users.give_back(77);
        assert_eq!(users.take().unwrap(), 77);

        let mut users = Users::new(65_535, 0);
        let first = users.take().unwrap();
        users.give_back(first);
        assert_ne!(users.take().unwrap(), first, "used again at once");
    }
}
