//! What a file and the environment may say, and what is told of what they may not.

use std::fs;
use std::os::unix::ffi::OsStringExt;

use super::docs::table;
use super::*;

fn from(name: &str, text: &str, environment: &[(&str, &str)]) -> anyhow::Result<Settings> {
    let dir = tempfile::tempdir()?;
    let file = dir.path().join(name);
    fs::write(&file, text)?;
    let environment = environment.iter().map(|(k, v)| (k.into(), v.into()));
    Settings::read(Some(&file), environment.collect(), &[])
        // The directory has another name each time.
        .map_err(|e| anyhow!(format!("{e:#}").replace(&format!("{}/", dir.path().display()), "")))
}

#[track_caller]
fn refused(name: &str, text: &str, environment: &[(&str, &str)]) -> String {
    from(name, text, environment).unwrap_err().to_string()
}

#[test]
fn files_of_both_forms_set_what_they_name_and_default_the_rest() {
    for (name, text) in [
        (
            "f.yaml",
            "execution:\n  default_memory: 1g\n  concurrency: 2\n  pids:\naudit:\n",
        ),
        (
            "f.yml",
            "{execution: {default_memory: \"1g\", concurrency: '2'}, audit: {}}",
        ),
        (
            "f.toml",
            "[execution]\ndefault_memory = '1g'\nconcurrency = 2\n[audit]\n",
        ),
        (
            "f.toml",
            "\u{feff}execution.default_memory = 1_073_741_824\nexecution.concurrency = 2",
        ),
    ] {
        let policy = from(name, text, &[]).unwrap().policy().unwrap();
        assert_eq!(policy.limits.default_memory, 1 << 30, "{text}");
        assert_eq!(policy.concurrency, 2, "{text}");
        assert_eq!(policy.limits.pids, ExecutionPolicy::default().limits.pids);
    }
    for empty in ["", "---\n", "# nothing\n", "null"] {
        assert_eq!(from("f.yaml", empty, &[]).unwrap(), Settings::default());
    }
}

#[test]
fn the_documented_file_has_every_setting_and_its_default() {
    let text = include_str!("../../examples/mcp-forge.yaml")
        .replace("# path:", "path:")
        .replace("# directory:", "directory:");
    let dir = tempfile::tempdir().unwrap();
    let policy = dir.path().join("policy.toml");
    fs::write(&policy, "").unwrap();
    let written = format!("policy: {}", policy.display());
    let text = text.replace("# policy: /etc/mcp-forge/policy.toml", &written);
    let settings = from("f.yaml", &text, &[]).unwrap();
    for (key, setting) in settings
        .0
        .iter()
        .filter(|(key, _)| ![AUDIT, POLICY, IMAGES].contains(key))
    {
        let row = table().into_iter().find(|row| row.key == *key).unwrap();
        assert_eq!(setting.text, row.default, "{key}");
    }
    let set: Vec<_> = settings.0.keys().copied().collect();
    let mut all: Vec<_> = keys().collect();
    all.sort_unstable();
    assert_eq!(set, all);
    assert_eq!(
        settings.policy().unwrap(),
        Settings::default().policy().unwrap()
    );
}

#[test]
fn the_environment_overrides_the_file_for_every_key() {
    let settings = from(
        "f.yaml",
        "execution:\n  pids: 10\n  queue: 3\n",
        &[
            ("MCP_FORGE_EXECUTION__PIDS", "20"),
            ("OTHER_EXECUTION__PIDS", "x"),
        ],
    )
    .unwrap();
    let policy = settings.policy().unwrap();
    assert_eq!((policy.limits.pids, policy.queue), (20, 3));
    for key in keys() {
        let text = match key {
            RUNTIME => "auto",
            UNENFORCED | STRONG | AUDIT_SYNC => "TRUE",
            AUDIT | POLICY => "/a",
            AUDIT_KEEP => "7",
            CLEANUP => "60",
            AUDIT_FAILURE => "run",
            _ if key.ends_with("quota") => "60000",
            // Each of them is both a number and a size, and within its range.
            _ => "2097152",
        };
        let environment = [(variable(key).into(), text.into())];
        let set = Settings::read(None, environment.into(), &[]);
        match set {
            Ok(set) => assert_eq!(set.0[key].text, text),
            Err(e) => assert!(e.to_string().starts_with(&variable(key)), "{key}: {e}"),
        }
    }
}

#[test]
fn a_value_that_is_none_is_told_with_its_place_key_and_range() {
    for (line, told) in [
        (
            "pids: many",
            "execution.pids is \"many\" (no whole number), must be 8 to 32768",
        ),
        ("pids: 7", "execution.pids is \"7\", must be 8 to 32768"),
        ("pids: -1", "execution.pids is \"-1\", must be 8 to 32768"),
        (
            "pids: 1000000000000000000000000000000",
            "execution.pids is \"1000000000000000000000000000000\", must be 8 to 32768",
        ),
        (
            "queue: 1.5",
            "execution.queue is \"1.5\" (no whole number), must be 0 to 65536",
        ),
        (
            "stdout_limit: 0",
            "execution.stdout_limit is \"0\", must be 1k to 64m",
        ),
        (
            "tmp_size: 1x",
            "execution.tmp_size is \"1x\" (no size such as 512m), must be 1m to 1t",
        ),
        (
            "output_stop: 1",
            "execution.output_stop is \"1\", must be 1k to 1t",
        ),
        (
            "default_memory: 15m",
            "execution.default_memory is \"15m\", must be at least 16m",
        ),
        (
            "max_memory: 99999999999999999999999999999999999999999999999999",
            "execution.max_memory is \"9999999999999999999999999999999999999999\"…, must be at least 16m",
        ),
        (
            "max_memory: 1000000000000000000000000000000",
            "execution.max_memory is \"1000000000000000000000000000000\" (larger than any memory), \
             must be at least 16m",
        ),
        (
            "max_timeout: 0",
            "execution.max_timeout is \"0\", must be 1 to 604800 whole seconds",
        ),
        (
            "max_timeout: 10",
            "execution.max_timeout is \"10\", must be at least the default (default_timeout), 300 s",
        ),
        ("pids: [1]", "execution.pids is a list, must be one value"),
        (
            "pids: {a: 1}",
            "execution.pids is a section, must be one value",
        ),
        ("pids: *a", "while parsing node, found unknown anchor"),
    ] {
        let told_of = refused("f.yaml", &format!("execution:\n\n  {line}\n"), &[]);
        let first = told_of.lines().next().unwrap();
        assert_eq!(first, format!("f.yaml:3: {told}"), "{line}");
    }
    assert_eq!(
        refused("f.toml", "[execution]\npids = 0x4\n", &[]),
        "f.toml:2: execution.pids is \"0x4\" (no whole number), must be 8 to 32768"
    );
    assert_eq!(
        refused(
            "f.yaml",
            "",
            &[("MCP_FORGE_EXECUTION__DEFAULT_TIMEOUT", "abc")]
        ),
        "MCP_FORGE_EXECUTION__DEFAULT_TIMEOUT: execution.default_timeout is \"abc\" (no whole number), \
         must be 1 to 604800 whole seconds"
    );
    assert_eq!(
        refused("f.yaml", "security: {accept_unenforced_limits: yes}", &[]),
        "f.yaml:1: security.accept_unenforced_limits is \"yes\", must be true or false"
    );
    assert_eq!(
        refused("f.yaml", "execution: {default_memory: 4g}", &[]),
        "execution.max_memory is 2g (not set), must be at least the default (default_memory), 4g"
    );
}

#[test]
fn what_is_no_setting_is_told_and_what_was_meant() {
    for (text, told) in [
        (
            "execution:\n  max_memroy: 1g",
            "2: unknown key \"execution.max_memroy\"; did you mean execution.max_memory?",
        ),
        (
            "excution:\n  pids: 9",
            "1: unknown key \"excution\"; did you mean execution?",
        ),
        (
            "max_memory: 1g",
            "1: unknown key \"max_memory\"; did you mean execution.max_memory?",
        ),
        (
            "execution:\n  colour: 1g",
            "2: unknown key \"execution.colour\"",
        ),
        (
            "execution: 3g",
            "1: execution is a section, it has no value of its own",
        ),
        (
            "execution:\n  pids: 9\n  pids: 9",
            "3: execution.pids is set a second time",
        ),
        ("\n---\nb: 2", "3: unknown key \"b\""),
        ("runtime:\n---\nb: 2", "2: a second document"),
        ("- a", "1: no section such as `execution:`"),
        ("execution", "1: no section such as `execution:`"),
        ("{[a]: 1}", "1: a key that is no text"),
        (
            "execution: &a {pids: 9}\nruntime: *a",
            "2: runtime is an alias, must be written out",
        ),
    ] {
        assert_eq!(
            refused("f.yaml", text, &[]),
            format!("f.yaml:{told}"),
            "{text}"
        );
    }
    for (name, told) in [
        (
            "EXECUTION",
            "MCP_FORGE_EXECUTION: execution is a section, set a key of it, such as MCP_FORGE_EXECUTION__DEFAULT_TIMEOUT",
        ),
        (
            "AUDIT_PATH",
            "unknown environment variable MCP_FORGE_AUDIT_PATH; did you mean MCP_FORGE_AUDIT__PATH?",
        ),
        (
            "MAX_MEMORY",
            "unknown environment variable MCP_FORGE_MAX_MEMORY; did you mean MCP_FORGE_EXECUTION__MAX_MEMORY?",
        ),
        (
            "EXECUTION__PIDZ",
            "unknown environment variable MCP_FORGE_EXECUTION__PIDZ; did you mean MCP_FORGE_EXECUTION__PIDS?",
        ),
        (
            "execution__pids",
            "unknown environment variable MCP_FORGE_execution__pids; did you mean MCP_FORGE_EXECUTION__PIDS?",
        ),
        (
            "COLOUR__DEPTH",
            "unknown environment variable MCP_FORGE_COLOUR__DEPTH",
        ),
    ] {
        let name = format!("MCP_FORGE_{name}");
        assert_eq!(refused("f.yaml", "", &[(&name, "3g")]), told);
    }
    // The file's own, and those of tests and scripts.
    for name in [
        "CONFIG",
        "TEST_PYTHON",
        "CI_CACHE",
        "VM_ONLY",
        "TEST_WITHOUT_LIBRARIES",
    ] {
        from("f.yaml", "", &[(&format!("MCP_FORGE_{name}"), "x")]).unwrap();
    }
}

#[test]
fn variables_that_are_not_utf_8_are_told_when_they_are_ours() {
    let bad = |text: &[u8]| OsString::from_vec(text.to_vec());
    let read = |name: OsString, value: OsString| Settings::read(None, [(name, value)].into(), &[]);
    for (name, value) in [
        (&b"OTHER"[..], &b"\xff"[..]),
        (b"\xff", b"1"),
        (b"MCP_FORGE_CONFIG", b"\xff"),
    ] {
        read(bad(name), bad(value)).unwrap();
    }
    for (name, value, told) in [
        (
            &b"MCP_FORGE_AUDIT__PATH"[..],
            &b"/\xff"[..],
            "MCP_FORGE_AUDIT__PATH: its value is not UTF-8",
        ),
        (
            b"MCP_FORGE_\xff",
            b"1",
            "\"MCP_FORGE_\\xFF\": its name is not UTF-8",
        ),
    ] {
        let error = read(bad(name), bad(value)).unwrap_err().to_string();
        assert_eq!(error, format!("environment variable {told}"));
    }
}

#[test]
fn a_relative_place_of_the_audit_log_is_refused() {
    for path in ["audit.jsonl", "./a/b", "", "~/audit.jsonl", "/a\0b"] {
        assert_eq!(
            refused("f.yaml", &format!("audit:\n  path: {path:?}"), &[]),
            format!("f.yaml:2: audit.path is {path:?}, must be an absolute path")
        );
    }
    let settings = from("f.yaml", "audit: {path: /var/log/a.jsonl}", &[]).unwrap();
    assert_eq!(
        settings.audit_path().unwrap(),
        Path::new("/var/log/a.jsonl")
    );
}

#[test]
fn what_is_no_file_is_told_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    let told = |path: &Path| {
        format!(
            "{:#}",
            Settings::read(Some(path), Environment::new(), &[]).unwrap_err()
        )
    };
    nix::unistd::mkfifo(&path("fifo.yaml"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(path("socket.yaml")).unwrap();
    fs::create_dir(path("directory.yaml")).unwrap();
    std::os::unix::fs::symlink("/dev/zero", path("device.yaml")).unwrap();
    fs::write(path("large.yaml"), " ".repeat((1 << 20) + 1)).unwrap();
    // It takes no space, and would take all memory.
    let endless = fs::File::create(path("endless.yaml")).unwrap();
    endless.set_len(1 << 40).unwrap();
    fs::write(path("latin.yaml"), b"a: \xe9").unwrap();
    fs::write(path("name.conf"), "").unwrap();
    for (name, what) in [
        ("fifo.yaml", "it is a named pipe, must be a regular file"),
        ("socket.yaml", "it is a socket, must be a regular file"),
        (
            "directory.yaml",
            "it is a directory, must be a regular file",
        ),
        ("device.yaml", "it is a device, must be a regular file"),
        ("large.yaml", "it is larger than 1 MiB"),
        ("endless.yaml", "it is larger than 1 MiB"),
        ("latin.yaml", "it is not UTF-8"),
        ("none.yaml", "No such file"),
        ("name.conf", "its name must end in .yaml, .yml or .toml"),
    ] {
        let told = told(&path(name));
        let wanted = format!("configuration file {}: {what}", path(name).display());
        assert!(told.starts_with(&wanted), "{told}");
    }
}

#[test]
fn deep_and_broken_files_are_errors() {
    let deep = ["[", "{a: ", "- ", "? ", "a:\n  "].map(|one| one.repeat(100_000));
    for text in deep
        .iter()
        .map(String::as_str)
        .chain(["a: \"", "a: b: c", "a:\n - b\n  c"])
    {
        for name in ["f.yaml", "f.toml"] {
            let told = from(name, text, &[])
                .expect_err(&text[..5.min(text.len())])
                .to_string();
            assert!(
                told.starts_with(&format!("{name}:")) && told.len() < 100 * MAX_FAULTS,
                "{told}"
            );
        }
    }
}

#[test]
fn everything_that_is_wrong_is_told_at_once() {
    let text = "execution:\n  pids: 1\n  max_memroy: 1g\n  queue: x\nsecurity:\n  \
                accept_unenforced_limits: perhaps\naudit:\n  path: logs/${NAME}\n  keep: 0\n\
                weather:\n  rain: 1\n  sun: 2\n";
    let environment = [
        ("MCP_FORGE_RUNTIME__KIND", "vm"),
        ("MCP_FORGE_FILES__CONT", "1"),
    ];
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("f.yaml");
    fs::write(&file, text).unwrap();
    let environment = environment.iter().map(|(k, v)| (k.into(), v.into()));
    let set = ["execution.max_timeout=0", "execution.pid=1", "nothing"].map(str::to_owned);
    let told = Settings::read(Some(&file), environment.collect(), &set).unwrap_err();
    let told = told
        .to_string()
        .replace(&format!("{}/", dir.path().display()), "");
    let told: Vec<&str> = told.lines().collect();
    assert_eq!(
        told,
        [
            "f.yaml:2: execution.pids is \"1\", must be 8 to 32768",
            "f.yaml:3: unknown key \"execution.max_memroy\"; did you mean execution.max_memory?",
            "f.yaml:4: execution.queue is \"x\" (no whole number), must be 0 to 65536",
            "f.yaml:6: security.accept_unenforced_limits is \"perhaps\", must be true or false",
            "f.yaml:8: audit.path: the variable NAME is not set; set it, or write ${NAME:-default}",
            "f.yaml:9: audit.keep is \"0\", must be 1 to 100000, or all",
            "f.yaml:10: unknown key \"weather\"",
            "unknown environment variable MCP_FORGE_FILES__CONT; did you mean MCP_FORGE_FILES__COUNT?",
            "--set: unknown key \"execution.pid\"; did you mean execution.pids?",
            "--set \"nothing\": must be KEY=VALUE, such as execution.pids=50",
            "--set: execution.max_timeout is \"0\", must be 1 to 604800 whole seconds",
            "MCP_FORGE_RUNTIME__KIND: runtime.kind is \"vm\", must be auto or libcontainer or podman or docker",
        ]
    );
}

#[test]
fn no_fault_hides_another() {
    let yaml = "execution:\n  pids: [1, {a: 2}]\n  queue: x\n  queue: 3\n  concurrency: {a: {b: 1}}\n  \
                descriptors: 1\nruntime:\n  kind: &k vm\naudit:\n  keep: *k\n  sync: maybe\n  a: \"\n";
    assert_eq!(
        refused("f.yaml", yaml, &[]).lines().collect::<Vec<_>>(),
        [
            "f.yaml:2: execution.pids is a list, must be one value",
            "f.yaml:3: execution.queue is \"x\" (no whole number), must be 0 to 65536",
            "f.yaml:4: execution.queue is set a second time",
            "f.yaml:5: execution.concurrency is a section, must be one value",
            "f.yaml:6: execution.descriptors is \"1\", must be 16 to 1048576",
            "f.yaml:8: runtime.kind is \"vm\", must be auto or libcontainer or podman or docker",
            "f.yaml:10: audit.keep is an alias, must be written out",
            "f.yaml:11: audit.sync is \"maybe\", must be true or false",
            "f.yaml:12: while scanning a quoted scalar, found unexpected end of stream",
        ]
    );
    let toml = "[execution]\npids = [1]\nqueue = \nqueue = 3\nconcurrency = 0\ndescriptors = 1 2\n\
                [audit]\nkeep = {a = 1}\nsync = 'maybe'\n[audit]\nmax_size = 3\n";
    let told = refused("f.toml", toml, &[]);
    let lines: Vec<&str> = told
        .lines()
        .map(|told| told.split(':').nth(1).unwrap())
        .collect();
    assert_eq!(
        lines,
        ["2", "3", "4", "5", "6", "8", "9", "10", "11"],
        "{told}"
    );
    // One that cannot be read is not held against another.
    assert_eq!(
        refused(
            "f.yaml",
            "execution: {default_memory: 5z, max_memory: 100m}",
            &[]
        ),
        "f.yaml:1: execution.default_memory is \"5z\" (no size such as 512m), must be at least 16m"
    );
    let many = (0..300).map(|n| format!("key{n}: 1\n")).collect::<String>();
    let told = refused("f.yaml", &many, &[]);
    assert!(
        told.ends_with("f.yaml:100: unknown key \"key99\"\nand 200 more"),
        "{told}"
    );
}

#[test]
fn what_a_variable_holds_is_in_no_message() {
    let environment = [("TOKEN", "s3cr3t")];
    for (text, told) in [
        ("execution: {pids: \"${TOKEN}\"}", "execution.pids"),
        ("execution: {tmp_size: \"${TOKEN}\"}", "execution.tmp_size"),
        ("audit: {path: \"${TOKEN}/a\"}", "audit.path"),
        ("runtime: {kind: \"${TOKEN}\"}", "runtime.kind"),
    ] {
        let refused = refused("f.yaml", text, &environment);
        assert!(
            refused.starts_with(&format!("f.yaml:1: {told} is \"${{TOKEN}}")),
            "{refused}"
        );
        assert!(!refused.contains("s3cr3t"), "{refused}");
    }
    let policy = refused(
        "f.yaml",
        "security: {policy: \"/no/${TOKEN}\"}",
        &environment,
    );
    assert!(
        policy.starts_with("f.yaml:1: security.policy: policy file /no/${TOKEN}: No such file"),
        "{policy}"
    );
}

#[test]
fn a_file_that_everybody_may_write_is_not_read() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("f.yaml");
    fs::write(&file, "").unwrap();
    for (mode, read) in [(0o644, true), (0o664, true), (0o646, false), (0o666, false)] {
        fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
        let told = Settings::read(Some(&file), Environment::new(), &[]);
        match told {
            Ok(_) => assert!(read, "{mode:o}"),
            Err(error) => assert!(
                error.to_string().ends_with("then `chmod o-w` it") && !read,
                "{mode:o}: {error}"
            ),
        }
    }
}

#[test]
fn the_command_line_comes_before_the_environment_before_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("f.yaml");
    fs::write(&file, "execution: {pids: 10, queue: 11, concurrency: 12}").unwrap();
    let environment = [("PIDS", "20"), ("QUEUE", "21")]
        .map(|(name, value)| (format!("MCP_FORGE_EXECUTION__{name}").into(), value.into()));
    let set = ["execution.pids=30".to_owned()];
    let settings = Settings::read(Some(&file), environment.into(), &set).unwrap();
    let effective = settings.effective();
    let of = |key: &str| {
        let one = effective.iter().find(|one| one.key == key).unwrap();
        (one.value.clone().unwrap(), one.source.clone())
    };
    let one = |value: &str, source: &str| (value.to_owned(), source.to_owned());
    assert_eq!(of("execution.pids"), one("30", "--set"));
    assert_eq!(
        of("execution.queue"),
        one("21", "MCP_FORGE_EXECUTION__QUEUE")
    );
    let line = format!("{}:1", file.display());
    assert_eq!(of("execution.concurrency"), one("12", &line));
    assert_eq!(of("execution.descriptors"), one("256", "default"));
    assert_eq!(of("audit.max_size"), one("64m", "default"));
    assert_eq!(effective.len(), keys().count());
}

#[test]
fn the_file_of_the_configuration_directory_needs_no_option() {
    let dir = tempfile::tempdir().unwrap();
    let own = dir.path().join("mcp-forge");
    let environment: Environment = [("XDG_CONFIG_HOME".into(), dir.path().into())].into();
    assert_eq!(own_file(&environment).unwrap(), None);
    fs::create_dir(&own).unwrap();
    fs::write(own.join("config.toml"), "").unwrap();
    assert_eq!(
        own_file(&environment).unwrap(),
        Some(own.join("config.toml"))
    );
    fs::write(own.join("config.yaml"), "").unwrap();
    let told = own_file(&environment).unwrap_err().to_string();
    assert!(told.starts_with("two configuration files, "), "{told}");
}

#[test]
fn the_example_files_are_sound() {
    for name in ["development", "production", "high-concurrency"] {
        let path = format!("{}/examples/{name}.yaml", env!("CARGO_MANIFEST_DIR"));
        let settings = Settings::load_file(Path::new(&path)).unwrap_or_else(|e| panic!("{e}"));
        assert_ne!(settings, Settings::default());
    }
}

/// With `UPDATE_DOCS` it writes them.
#[test]
fn the_documents_are_those_of_the_table() {
    let mut rows = String::new();
    for row in table() {
        let default = match row.default.as_str() {
            "" => String::new(),
            default => format!("`{default}`"),
        };
        let (key, variable, about) = (row.key, variable(row.key), row.about);
        let allowed = row.allowed;
        rows.push_str(&format!(
            "| `{key}`<br>`{variable}` | {default} | {allowed} | {about} |\n"
        ));
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let read = |name: &str| fs::read_to_string(root.join(name)).unwrap_or_default();
    let document = read("docs/configuration.md");
    let (before, rest) = document.split_once("<!-- settings -->\n").unwrap();
    let (_, after) = rest.split_once("<!-- end -->").unwrap();
    let header = "| setting, variable | default | allowed | meaning |\n|---|---|---|---|\n";
    let document = format!("{before}<!-- settings -->\n{header}{rows}<!-- end -->{after}");
    let schema = format!("{:#}\n", schema());
    for (name, wanted) in [
        ("docs/configuration.md", document),
        ("docs/configuration.schema.json", schema),
    ] {
        if std::env::var_os("UPDATE_DOCS").is_some() {
            fs::write(root.join(name), &wanted).unwrap();
        }
        assert_eq!(
            read(name),
            wanted,
            "{name}: run this test with UPDATE_DOCS=1"
        );
    }
}
