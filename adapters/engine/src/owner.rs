//! Who made a container, and whether that process still lives: proc(5).

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The label of the process that made a container.
pub const LABEL_OWNER: &str = "io.mcp-forge.owner";

/// From this age on a container is nobody's whose owner cannot be looked up from here.
const ABANDONED: Duration = Duration::from_secs(24 * 60 * 60);

/// A process, by what no other one has: boot of the kernel, namespace of process ids, id and time of
/// its start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Owner {
    boot: String,
    namespace: u64,
    process: u32,
    start: u64,
}

impl Owner {
    /// This process.
    pub fn own() -> Self {
        let process = std::process::id();
        Self {
            boot: boot(),
            namespace: fs::metadata("/proc/self/ns/pid").map_or(0, |namespace| namespace.ino()),
            process,
            start: start(process).unwrap_or(0),
        }
    }

    /// As it is in a label.
    pub fn encode(&self) -> String {
        format!(
            "{}/{}/{}/{}",
            self.boot, self.namespace, self.process, self.start
        )
    }

    /// What a label says; nothing for one that is not ours.
    fn decode(label: &str) -> Option<Self> {
        let mut parts = label.split('/');
        let owner = Self {
            boot: parts.next()?.to_owned(),
            namespace: parts.next()?.parse().ok()?,
            process: parts.next()?.parse().ok()?,
            start: parts.next()?.parse().ok()?,
        };
        parts.next().is_none().then_some(owner)
    }

    /// Whether it is gone, so far as that can be told from `own`, of a container of this age.
    fn is_gone(&self, own: &Self, age: Duration) -> bool {
        if self.boot != own.boot {
            return true;
        }
        if self.namespace != own.namespace {
            return age > ABANDONED;
        }
        start(self.process) != Some(self.start)
    }
}

/// Which of these containers, each with its id, its label and the time of its creation (seconds since
/// 1970), are of servers that are gone.
pub fn leftovers<'a>(containers: impl IntoIterator<Item = (&'a str, &'a str, u64)>) -> Vec<String> {
    let own = Owner::own();
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    let gone = containers.into_iter().filter(|(_, label, created)| {
        let age = now.saturating_sub(Duration::from_secs(*created));
        Owner::decode(label).is_some_and(|owner| owner.is_gone(&own, age))
    });
    gone.map(|(id, ..)| id.to_owned()).collect()
}

fn boot() -> String {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    boot.trim().to_owned()
}

/// When a process was started, clock ticks since the boot.
fn start(process: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The name of the program may hold anything; field 22 is the 20th after it.
    stat.rsplit_once(") ")?.1.split(' ').nth(19)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_owner_lives_or_is_gone() {
        let own = Owner::own();
        assert!(
            own.start > 0 && own.namespace > 0 && own.boot.len() == 36,
            "{own:?}"
        );
        assert_eq!(Owner::decode(&own.encode()), Some(own.clone()));
        let young = Duration::ZERO;
        assert!(!own.is_gone(&own, ABANDONED * 2));
        let of = |change: fn(&mut Owner)| {
            let mut owner = own.clone();
            change(&mut owner);
            owner
        };
        assert!(of(|o| o.boot.push('x')).is_gone(&own, young));
        assert!(of(|o| o.start += 1).is_gone(&own, young));
        assert!(of(|o| o.process = u32::MAX).is_gone(&own, young));
        let elsewhere = of(|o| o.namespace += 1);
        assert!(!elsewhere.is_gone(&own, ABANDONED));
        assert!(elsewhere.is_gone(&own, ABANDONED * 2));
        for label in ["", "a", "a/1/2", "a/1/2/3/4", "a/1/-2/3", "a/x/2/3"] {
            assert_eq!(Owner::decode(label), None, "{label}");
        }
    }
}
