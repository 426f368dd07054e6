//! How R is started: without its shell wrapper, with `runner.R` as the user's profile, and two
//! pipes. The head of `runner.R` says why.

use std::fs::File;
use std::io::{self, Read};
use std::process::Command;

use super::{Channel, Ends, Reserved, interpreter};

/// Where the wrapper may be, in the order of `PATH`.
const WRAPPERS: [&str; 3] = ["/usr/local/bin/R", "/usr/bin/R", "/bin/R"];

/// Longest wrapper that is read, bytes.
const MAX_WRAPPER: u64 = 64 * 1024;

/// # Errors
///
/// A text for the person when there is no R.
pub(super) fn command() -> Result<Command, String> {
    let wrapper = WRAPPERS.iter().find_map(|path| {
        let mut bytes = Vec::new();
        let file = File::open(path).ok()?;
        file.take(MAX_WRAPPER).read_to_end(&mut bytes).ok()?;
        Some(String::from_utf8_lossy(&bytes).into_owned())
    });
    let wrapper = wrapper.ok_or("there is no R in the sandbox; install R on the host (in /usr), or use an image that has it")?;
    let home = assigned(&wrapper, "R_HOME_DIR")
        .ok_or("the command R of the sandbox does not say where R is (R_HOME_DIR)")?;
    let mut command = interpreter(&format!("{home}/bin/exec/R"));
    command
        .args(["--no-echo", "--no-restore", "--no-save"])
        .env("R_HOME", home)
        .env("R_ARCH", "")
        // Empty: R reads neither the host's Renviron.site and Rprofile.site nor a user's .Renviron.
        .env("R_ENVIRON", "")
        .env("R_PROFILE", "")
        .env("R_ENVIRON_USER", "")
        .env("R_PROFILE_USER", "/run/forge/r/runner.R")
        .env("LD_LIBRARY_PATH", format!("{home}/lib"))
        // OpenBLAS starts a thread for each CPU of the host when R is loaded, and so meets the limit
        // of processes on a large one.
        .env("OPENBLAS_NUM_THREADS", "1");
    for (name, default) in [
        ("R_SHARE_DIR", "share"),
        ("R_INCLUDE_DIR", "include"),
        ("R_DOC_DIR", "doc"),
    ] {
        let directory = assigned(&wrapper, name).map(str::to_owned);
        command.env(
            name,
            directory.unwrap_or_else(|| format!("{home}/{default}")),
        );
    }
    Ok(command)
}

/// The absolute path that the wrapper assigns to a variable at the beginning of a line.
fn assigned<'a>(wrapper: &'a str, name: &str) -> Option<&'a str> {
    wrapper
        .lines()
        .filter_map(|line| line.strip_prefix(name)?.strip_prefix('='))
        .map(|value| value.trim().trim_matches('"'))
        .find(|value| value.starts_with('/'))
}

/// Two pipes: the program reads its job from descriptor 3 and reports on descriptor 4.
pub(super) fn ends(Reserved { three, four }: Reserved) -> io::Result<Ends> {
    let (reports, to_reports) = io::pipe()?;
    drop(three);
    let (jobs, answers) = io::pipe()?;
    drop(four);
    // A clone takes the lowest number that is free.
    let to_reports = to_reports.try_clone()?;
    Ok(Ends {
        theirs: vec![jobs.into(), to_reports.into()],
        ours: Channel {
            reports: File::from(std::os::fd::OwnedFd::from(reports)),
            answers: File::from(std::os::fd::OwnedFd::from(answers)),
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wrapper_says_where_r_is() {
        let wrapper = "#!/bin/bash\n# R_HOME_DIR=/no\nR_HOME_DIR=/usr/lib/R\nif x; then\n  \
                       R_HOME_DIR=/other\nfi\nR_DOC_DIR=\"/usr/share/R/doc\"\nR_SHARE_DIR=rel\n";
        assert_eq!(assigned(wrapper, "R_HOME_DIR"), Some("/usr/lib/R"));
        assert_eq!(assigned(wrapper, "R_DOC_DIR"), Some("/usr/share/R/doc"));
        assert_eq!(assigned(wrapper, "R_SHARE_DIR"), None);
        assert_eq!(assigned(wrapper, "R_HOME"), None);
    }
}
