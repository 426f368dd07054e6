//! The repository checks itself: which crate may depend on which, which external crate is used
//! where, and a few rules that no compiler knows.
//!
//! Every check is a function over data that gives what is wrong. One test shows it something wrong,
//! another one the repository. What clippy can say (printing, panics, I/O in the domain) is left to it.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use cargo_metadata::{DependencyKind, MetadataCommand};

/// What one member of the workspace may depend on. Build scripts may use the standard library only.
struct Member {
    name: &'static str,
    /// Other members.
    internal: &'static [&'static str],
    /// Crates of others; `*` is any.
    external: &'static [&'static str],
    /// Crates of others that only its tests use.
    tests: &'static [&'static str],
}

const MEMBERS: [Member; 17] = [
    Member {
        name: "mcp-forge",
        internal: &[
            "mcp-forge-audit-file",
            "mcp-forge-build",
            "mcp-forge-docker",
            "mcp-forge-domain",
            "mcp-forge-podman",
            "mcp-forge-guest",
            "mcp-forge-images",
            "mcp-forge-libcontainer",
            "mcp-forge-mcp",
            "mcp-forge-ports",
            "mcp-forge-registry",
            "mcp-forge-spool",
        ],
        external: &[
            "anstyle-parse",
            "anyhow",
            "async-trait",
            "base64",
            "cap-std",
            "cap-tempfile",
            "clap",
            "futures",
            "indicatif",
            "jiff",
            "nix",
            "png",
            "serde",
            "serde_json",
            "serde_path_to_error",
            "strsim",
            "tokio",
            "tokio-util",
            "toml",
            "tracing",
            "tracing-appender",
            "tracing-subscriber",
            "uuid",
            "yaml-rust2",
        ],
        tests: &[
            "cargo_metadata",
            "libtest-mimic",
            "proptest",
            "tar",
            "tempfile",
        ],
    },
    Member {
        name: "mcp-forge-ports",
        internal: &[],
        // mockall: only with the feature `testing`.
        external: &[
            "async-trait",
            "futures",
            "mockall",
            "serde_json",
            "thiserror",
            "tokio",
            "tokio-util",
        ],
        tests: &[],
    },
    Member {
        name: "mcp-forge-domain",
        internal: &["mcp-forge-ports"],
        external: &[
            "async-trait",
            "futures",
            "mime_guess",
            "serde",
            "serde_json",
            "sha2",
            "thiserror",
            "tokio",
            "tokio-util",
            "tracing",
        ],
        tests: &["mockall", "proptest"],
    },
    Member {
        name: "mcp-forge-engine",
        internal: &["mcp-forge-ports", "mcp-forge-presentation"],
        external: &[
            "async-trait",
            "futures",
            "serde",
            "serde_json",
            "sha2",
            "tar",
            "tokio",
            "toml",
            "tracing",
        ],
        tests: &["tempfile", "tokio"],
    },
    Member {
        name: "mcp-forge-build",
        internal: &["mcp-forge-engine", "mcp-forge-ports"],
        external: &[
            "anstream",
            "async-trait",
            "bytes",
            "http-body-util",
            "hyper",
            "hyper-util",
            "percent-encoding",
            "rustix",
            "serde",
            "serde_json",
            "tar",
            "thiserror",
            "tokio",
            "tracing",
            "uuid",
        ],
        tests: &[],
    },
    Member {
        name: "mcp-forge-images",
        internal: &["mcp-forge-ports", "mcp-forge-presentation"],
        external: &[
            "async-trait",
            "flate2",
            "oci-spec",
            "rustix",
            "ruzstd",
            "serde",
            "serde_json",
            "sha2",
            "tar",
            "tempfile",
            "thiserror",
            "tokio",
        ],
        tests: &["proptest", "tokio"],
    },
    Member {
        name: "mcp-forge-registry",
        internal: &["mcp-forge-ports"],
        external: &[
            "async-trait",
            "backon",
            "docker_credential",
            "futures",
            "http-auth",
            "oci-spec",
            "reqwest",
            "rustls",
            "serde",
            "serde_json",
            "sha2",
            "thiserror",
            "tokio",
            "tracing",
        ],
        tests: &["tempfile", "tokio"],
    },
    Member {
        name: "mcp-forge-podman",
        internal: &[
            "mcp-forge-engine",
            "mcp-forge-ports",
            "mcp-forge-presentation",
        ],
        external: &[
            "async-trait",
            "bytes",
            "http-body-util",
            "hyper",
            "hyper-util",
            "jiff",
            "percent-encoding",
            "serde",
            "serde_json",
            "sha2",
            "tempfile",
            "thiserror",
            "tokio",
            "toml",
            "tracing",
            "uuid",
        ],
        tests: &["insta", "tokio"],
    },
    Member {
        name: "mcp-forge-docker",
        internal: &[
            "mcp-forge-engine",
            "mcp-forge-ports",
            "mcp-forge-presentation",
        ],
        external: &[
            "async-trait",
            "bollard",
            "bytes",
            "futures",
            "serde",
            "serde_json",
            "sha2",
            "thiserror",
            "tokio",
            "tracing",
            "uuid",
        ],
        tests: &["insta", "tempfile"],
    },
    Member {
        name: "mcp-forge-presentation",
        internal: &[],
        external: &[],
        tests: &[],
    },
    Member {
        name: "mcp-forge-libcontainer",
        internal: &["mcp-forge-ports", "mcp-forge-presentation"],
        external: &[
            "async-trait",
            "libcontainer",
            "libseccomp",
            "nix",
            "oci-spec",
            "postcard",
            "serde",
            "serde_json",
            "thiserror",
            "tokio",
            "toml",
            "tracing",
        ],
        tests: &["tempfile"],
    },
    Member {
        name: "mcp-forge-guest",
        // The frames of the agent: both ends of the stream share them.
        internal: &[
            "mcp-forge-agent",
            "mcp-forge-ports",
            "mcp-forge-presentation",
        ],
        external: &["async-trait", "base64", "serde", "serde_json", "tokio"],
        tests: &[],
    },
    Member {
        name: "mcp-forge-mcp",
        internal: &["mcp-forge-ports"],
        external: &[
            "async-trait",
            "base64",
            "futures",
            "percent-encoding",
            "rmcp",
            "rustix",
            "serde_json",
            "strsim",
            "thiserror",
            "tokio",
            "tokio-util",
            "tracing",
            "uuid",
        ],
        tests: &["insta", "proptest", "tempfile"],
    },
    Member {
        name: "mcp-forge-spool",
        internal: &["mcp-forge-ports"],
        external: &["async-trait", "tempfile", "tokio"],
        tests: &[],
    },
    Member {
        name: "mcp-forge-audit-file",
        internal: &["mcp-forge-ports"],
        external: &[
            "async-trait",
            "jiff",
            "memchr",
            "regex",
            "rustix",
            "serde",
            "serde_json",
            "sha2",
            "thiserror",
            "tokio",
        ],
        tests: &["tempfile"],
    },
    Member {
        name: "mcp-forge-agent",
        internal: &[],
        external: &["nix"],
        tests: &["proptest"],
    },
    // Measures the product from outside, with whatever that takes.
    Member {
        name: "mcp-forge-benches",
        internal: &[],
        external: &["*"],
        tests: &[],
    },
];

/// The leaf modules that may hold `unsafe`.
const UNSAFE: [&str; 1] = ["adapters/libcontainer/src/sys.rs"];

/// Beginnings of names that belong to adapters: neither contracts nor rules may speak of them.
const WIRE: [&str; 6] = [
    "bollard",
    "jupyter",
    "libcontainer",
    "oci_spec",
    "podman",
    "rmcp",
];

/// Users that exist in tests only, so that their homes are no place of a real machine.
const MADE_UP: [&str; 1] = ["bob"];

/// What is wrong with the dependencies of one member.
fn forbidden_edges<'a>(
    member: &Member,
    uses: impl IntoIterator<Item = (DependencyKind, &'a str)>,
) -> Vec<String> {
    let allowed = |kind, used: &str| {
        let lists: &[&[&str]] = match (kind, used.starts_with("mcp-forge")) {
            (DependencyKind::Normal | DependencyKind::Development, true) => &[member.internal],
            (DependencyKind::Normal, false) => &[member.external],
            (DependencyKind::Development, false) => &[member.external, member.tests],
            _ => &[],
        };
        let any = !used.starts_with("mcp-forge");
        lists
            .iter()
            .any(|list| list.contains(&used) || (any && list.contains(&"*")))
    };
    uses.into_iter()
        .filter(|(kind, used)| !allowed(*kind, used))
        .map(|(kind, used)| format!("{} must not depend on {used} ({kind})", member.name))
        .collect()
}

/// Rust source without comments and without what is between quotation marks.
fn code(source: &str) -> String {
    let mut kept = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(next) = rest.chars().next() {
        let skipped = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            rest.find("*/").map_or(rest.len(), |end| end + 2)
        } else if rest.starts_with("'\"'") || rest.starts_with("'\\\"'") {
            rest[1..].find("'").map_or(rest.len(), |end| end + 2)
        } else if next == '"' {
            let hashes = kept.len() - kept.trim_end_matches('#').len();
            if kept[..kept.len() - hashes].ends_with('r') {
                let end = format!("\"{}", "#".repeat(hashes));
                rest[1..]
                    .find(&end)
                    .map_or(rest.len(), |at| 1 + at + end.len())
            } else {
                string(rest)
            }
        } else {
            kept.push(next);
            rest = &rest[next.len_utf8()..];
            continue;
        };
        rest = &rest[skipped..];
        kept.push(' ');
    }
    kept
}

/// Length of the string literal at the front, quotation marks included.
fn string(source: &str) -> usize {
    let mut escaped = false;
    for (at, c) in source.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => return at + 1,
            _ => {}
        }
    }
    source.len()
}

fn words(code: &str) -> impl Iterator<Item = &str> {
    code.split(|c: char| !c.is_alphanumeric() && c != '_')
}

/// Whether a source has a block, function, trait, implementation or attribute that is `unsafe`.
fn holds_unsafe(source: &str) -> bool {
    words(&code(source)).any(|word| word == "unsafe")
}

/// Whether a source is compiled differently with a feature.
fn depends_on_a_feature(source: &str) -> bool {
    // Put together here, so that this file does not depend on one itself.
    let feature = ["feature", "="].concat();
    let packed: String = source
        .lines()
        .filter(|line| !line.trim_start().starts_with("//"))
        .flat_map(str::chars)
        .filter(|c| !c.is_whitespace())
        .collect();
    packed.match_indices("cfg").any(|(at, _)| {
        let predicate = packed[at..].split([']', ';', '{']).next();
        predicate.is_some_and(|predicate| predicate.contains(&feature))
    })
}

/// Names of adapters that a source uses.
fn wire_names(source: &str) -> BTreeSet<String> {
    let named = |word: &str| {
        let word = word.to_lowercase();
        WIRE.iter().any(|wire| word.starts_with(wire))
    };
    words(&code(source))
        .filter(|word| named(word))
        .map(str::to_owned)
        .collect()
}

/// Places that exist on one machine only: a person's home, or what root keeps in hidden files.
fn machine_places(text: &str) -> Vec<String> {
    // Put together here, so that this file does not name them.
    let (home, hidden) = (["/home", "/"].concat(), ["/root", "/."].concat());
    let homes = text.match_indices(&home).filter_map(|(at, _)| {
        let rest = &text[at + home.len()..];
        let user = rest
            .split(|c: char| !c.is_ascii_alphanumeric() && c != '_' && c != '-')
            .next()?;
        (!user.is_empty() && !MADE_UP.contains(&user)).then(|| format!("{home}{user}"))
    });
    homes
        .chain(text.contains(&hidden).then(|| hidden.clone()))
        .collect()
}

/// Whether a manifest takes the lints of the workspace, and has none of its own.
fn takes_the_lints(manifest: &str) -> bool {
    let mut lines = manifest.lines().map(str::trim);
    lines.any(|line| line == "[lints]") && lines.next() == Some("workspace = true")
}

/// Whether a source says at its top what it is. The name of a module of unit tests says it already.
fn says_what_it_is(file: &str, source: &str) -> bool {
    file.ends_with("/tests.rs") || source.starts_with("//!")
}

/// The files that the index does not link.
fn unlisted<'a>(index: &str, files: impl IntoIterator<Item = &'a str>) -> Vec<&'a str> {
    files
        .into_iter()
        .filter(|file| !index.contains(&format!("({file})")))
        .collect()
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Files of the repository that match, also those that are about to be added.
fn files(pattern: &str) -> Vec<String> {
    let listed = Command::new("git")
        .args(["ls-files", "--cached", "--others", "--exclude-standard"])
        .args(["--", pattern])
        .current_dir(root())
        .output()
        .expect("git is installed");
    let complaint = String::from_utf8_lossy(&listed.stderr);
    assert!(listed.status.success(), "git ls-files: {complaint}");
    let names = String::from_utf8(listed.stdout).expect("file names are UTF-8");
    // One that was just removed is still in the index.
    let found: Vec<String> = names
        .lines()
        .filter(|file| root().join(file).is_file())
        .map(str::to_owned)
        .collect();
    assert!(!found.is_empty(), "no file matches {pattern}");
    found
}

fn read(file: &str) -> String {
    let bytes = std::fs::read(root().join(file)).expect("a listed file can be read");
    String::from_utf8_lossy(&bytes).into_owned()
}

#[test]
fn forbidden_edges_are_found() {
    use DependencyKind::{Build, Development, Normal};
    let member = Member {
        name: "d",
        internal: &["mcp-forge-ports"],
        external: &["serde"],
        tests: &["proptest"],
    };
    let allowed = [
        (Normal, "mcp-forge-ports"),
        (Normal, "serde"),
        (Development, "mcp-forge-ports"),
        (Development, "proptest"),
        (Development, "serde"),
    ];
    assert!(forbidden_edges(&member, allowed).is_empty());
    for (kind, used) in [
        (Normal, "mcp-forge-mcp"),
        (Normal, "rmcp"),
        (Normal, "proptest"),
        (Development, "mcp-forge-mcp"),
        (Development, "rmcp"),
        (Build, "serde"),
        (Build, "mcp-forge-ports"),
    ] {
        let found = forbidden_edges(&member, [(Normal, "serde"), (kind, used)]);
        assert_eq!(
            found,
            [format!("d must not depend on {used} ({kind})")],
            "{used}"
        );
    }
    let any = Member {
        external: &["*"],
        internal: &[],
        ..member
    };
    assert!(forbidden_edges(&any, [(Normal, "rmcp"), (Development, "rmcp")]).is_empty());
    assert_eq!(
        forbidden_edges(&any, [(Normal, "mcp-forge-ports"), (Build, "rmcp")]).len(),
        2
    );
}

#[test]
fn dependencies_go_where_they_may() {
    let metadata = MetadataCommand::new()
        .no_deps()
        .current_dir(root())
        .exec()
        .expect("cargo reads the workspace");
    let mut found = Vec::new();
    for package in &metadata.packages {
        let name = package.name.as_str();
        match MEMBERS.iter().find(|member| member.name == name) {
            None => found.push(format!("{name} is not in the list of members")),
            Some(member) => {
                let uses = package.dependencies.iter();
                found.extend(forbidden_edges(
                    member,
                    uses.map(|d| (d.kind, d.name.as_str())),
                ));
            }
        }
    }
    for member in &MEMBERS {
        if !metadata
            .packages
            .iter()
            .any(|p| p.name.as_str() == member.name)
        {
            found.push(format!("{} is no member any more", member.name));
        }
    }
    // Or every build would compile every adapter.
    for package in metadata.workspace_default_packages() {
        let manifest = package.manifest_path.as_std_path();
        if manifest.starts_with(root().join("adapters")) {
            found.push(format!("{} is a default member", package.name));
        }
    }
    assert!(found.is_empty(), "{found:#?}");
}

#[test]
fn lints_of_its_own_are_found() {
    assert!(takes_the_lints(
        "[package]\nname = \"a\"\n\n[lints]\nworkspace = true\n"
    ));
    assert!(!takes_the_lints("[package]\nname = \"a\"\n"));
    assert!(!takes_the_lints("[lints.rust]\nunsafe_code = \"allow\"\n"));
    assert!(!takes_the_lints(
        "[lints]\n\n[dependencies.a]\nworkspace = true\n"
    ));
}

#[test]
fn every_member_takes_the_lints_of_the_workspace() {
    // The fuzz targets are a workspace of their own.
    for manifest in files("*Cargo.toml") {
        let taken = manifest.starts_with("fuzz/") || takes_the_lints(&read(&manifest));
        assert!(taken, "{manifest} does not take the lints of the workspace");
    }
}

#[test]
fn a_file_that_does_not_say_what_it_is_is_found() {
    assert!(says_what_it_is("a/src/lib.rs", "//! A.\n"));
    assert!(says_what_it_is("a/src/b/tests.rs", "use super::*;\n"));
    assert!(!says_what_it_is("a/src/lib.rs", "// A.\n//! A.\n"));
    assert!(!says_what_it_is("tests/main.rs", "mod a;\n"));
}

#[test]
fn every_file_says_what_it_is() {
    for file in files("*.rs") {
        let says = says_what_it_is(&file, &read(&file));
        assert!(says, "{file} does not start with //!");
    }
}

#[test]
fn only_code_is_looked_at() {
    let source = "let a = \"x \\\" unsafe\"; // unsafe\n/* unsafe */ let b = '\"';\n\
                  let c = r#\"\"unsafe\"\"#; let d = br\"unsafe\\\"; f(b\"unsafe\")";
    let kept = code(source);
    assert!(!kept.contains("unsafe"), "{kept}");
    for name in ["a", "b", "c", "d", "f"] {
        assert!(words(&kept).any(|word| word == name), "{name} in {kept}");
    }
}

#[test]
fn unsafe_code_is_found() {
    for source in [
        "let a = unsafe { b() };",
        "unsafe\n{ b() }",
        "unsafe impl Send for A {}",
        "\"a\"; unsafe extern \"C\" {}",
        "#[unsafe(no_mangle)] fn a() {}",
    ] {
        assert!(holds_unsafe(source), "{source}");
    }
    for source in [
        "#![forbid(unsafe_code)]",
        "// unsafe { }",
        "let a = \"unsafe {\";",
    ] {
        assert!(!holds_unsafe(source), "{source}");
    }
}

#[test]
fn unsafe_code_is_in_named_leaf_modules_only() {
    let holders: Vec<String> = files("*.rs")
        .into_iter()
        .filter(|file| holds_unsafe(&read(file)))
        .collect();
    // Both ways: a module that needs it no more leaves the list.
    assert_eq!(holders, UNSAFE);
}

#[test]
fn dependence_on_a_feature_is_found() {
    for source in [
        "#[cfg(feature = \"a\")]\nfn a() {}",
        "#[cfg(all(test,\n    not(feature=\"a\")))] mod a;",
        "#[cfg_attr(feature = \"a\", allow(dead_code))]",
        "if cfg!(feature = \"a\") {}",
    ] {
        assert!(depends_on_a_feature(source), "{source}");
    }
    for source in [
        "#[cfg(test)]\nmod tests {}",
        "// #[cfg(feature = \"a\")]",
        "let cfg = 1; let feature = 2;",
    ] {
        assert!(!depends_on_a_feature(source), "{source}");
    }
}

#[test]
fn the_composition_alone_depends_on_features() {
    let dependent: Vec<String> = files("src/*.rs")
        .into_iter()
        .filter(|file| depends_on_a_feature(&read(file)))
        .collect();
    assert_eq!(dependent, ["src/compose.rs"]);
}

#[test]
fn wire_names_are_found() {
    for (source, name) in [
        ("use rmcp::model::Tool;", "rmcp"),
        ("fn a(b: &oci_spec::runtime::Spec) {}", "oci_spec"),
        ("struct PodmanHandle;", "PodmanHandle"),
        ("jupyter_protocol::decode(a)", "jupyter_protocol"),
    ] {
        assert!(wire_names(source).contains(name), "{source}");
    }
    let none = wire_names("/// `podman` or `docker`.\nlet kind = \"libcontainer\"; // rmcp");
    assert!(none.is_empty(), "{none:?}");
}

#[test]
fn contracts_and_rules_name_no_wire_type() {
    for file in files("ports/*.rs").into_iter().chain(files("domain/*.rs")) {
        let named = wire_names(&read(&file));
        assert!(named.is_empty(), "{file} names {named:?}");
    }
}

#[test]
fn places_of_one_machine_are_found() {
    let places = |parts: [&str; 3]| machine_places(&parts.concat());
    assert_eq!(places(["cd /home", "/eve", "/src"]).len(), 1);
    assert_eq!(places(["\"/home", "/eve\"", ""]).len(), 1);
    assert_eq!(places(["/root", "/.cargo", "/bin"]).len(), 1);
    assert_eq!(places(["/home", "/bob", "/x"]).len(), 0);
    assert_eq!(
        places([
            "nothing of /home, /root; /home",
            "/$name ",
            "/proc/1/root/tmp"
        ])
        .len(),
        0
    );
}

#[test]
fn no_file_names_a_place_of_one_machine() {
    for file in files("*").iter().filter(|file| !file.ends_with(".lock")) {
        let found = machine_places(&read(file));
        assert!(found.is_empty(), "{file} names {found:?}");
    }
}

#[test]
fn decisions_that_are_not_in_the_index_are_found() {
    let index = "| [0001](0001-a.md) | a |\n0002-b.md\n";
    assert_eq!(unlisted(index, ["0001-a.md", "0002-b.md"]), ["0002-b.md"]);
}

#[test]
fn every_decision_is_in_the_index() {
    let decisions = files("ADR/*.md");
    let names = decisions
        .iter()
        .filter_map(|file| file.strip_prefix("ADR/"))
        .filter(|name| *name != "README.md");
    let missing = unlisted(&read("ADR/README.md"), names);
    assert!(
        missing.is_empty(),
        "ADR/README.md does not link {missing:?}"
    );
}
