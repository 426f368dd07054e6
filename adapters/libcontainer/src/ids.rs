//! The range of user and group ids that the nursery's user namespace gets on the host.
//!
//! As root, a range that no system hands out; as an ordinary user, the subordinate range of
//! `/etc/subuid` and `/etc/subgid` (subuid(5)) through `newuidmap` and `newgidmap`.

use std::fs;

use crate::warden::{privileged, run_id_helper};

/// First id of the range that root uses. systemd documents 1879048192..2147352575 as used by
/// nobody (its `UIDS-GIDS` page), so no container tool's ids and no user's overlap it.
const ROOT_BASE: u32 = 1_879_048_192;

/// How many ids the namespace gets.
const COUNT: u32 = 65_536;

/// Why there is no range, and the way out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NoRange {
    pub(crate) error: String,
    pub(crate) hint: String,
}

/// The id maps to write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Map {
    /// By root: a range of its own.
    Direct,
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
            Self::Direct => ROOT_BASE,
            Self::Subordinate { user, .. } => *user,
        }
    }

    /// Writes the maps of process `pid`.
    pub(crate) fn write(&self, pid: u32) -> Result<(), NoRange> {
        match self {
            Self::Direct => {
                for file in ["uid_map", "gid_map"] {
                    fs::write(
                        format!("/proc/{pid}/{file}"),
                        format!("0 {ROOT_BASE} {COUNT}\n"),
                    )
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
        return Ok(Map::Direct);
    }
    let name = nix::unistd::User::from_uid(user.into())
        .ok()
        .flatten()
        .map(|u| u.name);
    let group = nix::unistd::getgid().as_raw();
    let range = |file: &str, option: &str| {
        let text = fs::read_to_string(file).unwrap_or_default();
        subordinate(&text, name.as_deref(), user).ok_or_else(|| NoRange {
            error: format!(
                "{file} gives user {} no range of at least 1001 ids",
                label(&name, user)
            ),
            hint: format!(
                "as root: usermod {option} 100000-165535 {} (and install the package uidmap)",
                label(&name, user)
            ),
        })
    };
    Ok(Map::Subordinate {
        user,
        group,
        uids: range("/etc/subuid", "--add-subuids")?,
        gids: range("/etc/subgid", "--add-subgids")?,
    })
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
        // The user inside is 1000, so ids 1..=1000 at least must be there.
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
}
