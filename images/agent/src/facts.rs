//! What the agent reads of its own confinement: proc_pid_status(5).

use mcp_forge_agent::FromAgent;

/// The greeting.
pub(crate) fn hello() -> FromAgent {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    read(&status)
}

fn read(status: &str) -> FromAgent {
    let field = |name: &str| {
        status
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
            .map(str::trim)
            .unwrap_or_default()
    };
    // What cannot be read counts as the worst.
    let capabilities = ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"]
        .map(|set| u64::from_str_radix(field(set), 16).unwrap_or(u64::MAX))
        .into_iter()
        .fold(0, std::ops::BitOr::bitor);
    FromAgent::Hello {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        uid: field("Uid")
            .split_whitespace()
            .nth(1)
            .and_then(|id| id.parse().ok())
            .unwrap_or(0),
        no_new_privs: field("NoNewPrivs") == "1",
        seccomp: field("Seccomp").parse().unwrap_or(0),
        capabilities,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_confined_process_is_told_from_others() {
        let confined = "Name:\tx\nUid:\t1000\t1000\t1000\t1000\nCapInh:\t0\nCapPrm:\t0\n\
                        CapEff:\t0\nCapBnd:\t0\nCapAmb:\t0\nNoNewPrivs:\t1\nSeccomp:\t2\n\
                        Seccomp_filters:\t1\n";
        let expected = |uid, no_new_privs, seccomp, capabilities| FromAgent::Hello {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            uid,
            no_new_privs,
            seccomp,
            capabilities,
        };
        assert_eq!(read(confined), expected(1000, true, 2, 0));
        assert_eq!(
            read(&confined.replace("CapBnd:\t0", "CapBnd:\t3")),
            expected(1000, true, 2, 3)
        );
        assert_eq!(read(""), expected(0, false, 0, u64::MAX));
    }
}
