//! R as people and clients use it: values, output in order, every ending, and nothing of the host
//! that Python would not get either. The other modules use Python for what all languages share.

use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use crate::client::Server;
use crate::home::{BINARY, CANARY, Finished, Home, finish};

/// Calls `execute_r` and gives its structured content.
fn call(server: &mut Server<'_>, mut arguments: Value, code: &str) -> Value {
    arguments["code"] = code.into();
    let id = server.begin(
        "tools/call",
        json!({"name": "execute_r", "arguments": arguments}),
    );
    server.told(id)
}

/// What R prints outside, with the same environment as the program under test.
fn outside(home: &Home, code: &str) -> Finished {
    let mut command = Command::new("R");
    home.furnish(&mut command);
    command.args(["--no-echo", "--no-save", "--no-restore", "-e", code]);
    finish(command, b"")
}

/// A shell in a mount namespace of its own, where `before` changes what the host has.
fn elsewhere(home: &Home, before: &str, then: &str) -> Finished {
    let mut command = Command::new("unshare");
    home.furnish(&mut command);
    let script = format!("set -e\n{before}\nset +e\n{then}");
    command.args(["--mount", "/bin/bash", "-c", &script, BINARY]);
    finish(command, b"")
}

#[test]
fn r_gives_values_and_everything_in_order() {
    let Some(home) = Home::for_root("values and output of R") else {
        return;
    };
    let mut server = Server::start(&home);
    for (code, result, repr, stdout) in [
        ("1:3", json!([1, 2, 3]), "[1] 1 2 3", ""),
        (
            "x <- data.frame(n = 1:2, s = c('a', '\u{fc}'))\nx",
            json!([{"n": 1, "s": "a"}, {"n": 2, "s": "\u{fc}"}]),
            "  n s\n1 1 a\n2 2 \u{fc}",
            "",
        ),
        (
            "cat(nchar('na\u{ef}ve \u{2713} \u{1f600}'), '\u{2713}\u{1f600}\\n'); '\u{e9}'",
            json!("\u{e9}"),
            "[1] \"\u{e9}\"",
            "9 \u{2713}\u{1f600}\n",
        ),
        ("system('echo hi'); 1", json!(1), "[1] 1", "hi\n"),
        (
            "system('Rscript -e 1+1', intern = TRUE)",
            json!("[1] 2"),
            "[1] \"[1] 2\"",
            "",
        ),
        (
            "unlist(parallel::mclapply(1:3, function(i) i^2, mc.cores = 2))",
            json!([1, 4, 9]),
            "[1] 1 4 9",
            "",
        ),
        // By way of the library that Debian's alternatives choose.
        ("solve(diag(2) * 2)[1, 1]", json!(0.5), "[1] 0.5", ""),
    ] {
        let told = call(&mut server, json!({}), code);
        assert_eq!(told["ended_by"], "completed", "{code}: {told:#}");
        assert_eq!(told["language"], "r", "{code}: {told:#}");
        assert_eq!(told["result"], result, "{code}: {told:#}");
        assert_eq!(told["result_repr"], repr, "{code}: {told:#}");
        assert_eq!(told["stdout"], stdout, "{code}: {told:#}");
        assert_eq!(told["stderr"], "", "{code}: {told:#}");
    }

    let code = "cat('1\\n'); message('2'); cat('3\\n'); warning('4'); print(5)\n6";
    let told = call(&mut server, json!({}), code);
    let stream = |text| json!({"type": "stream", "stream": "stdout", "text": text});
    let blocks = json!([
        stream("1\n"),
        {"type": "message", "text": "2\n"},
        stream("3\n"),
        {"type": "warning", "text": "4", "call": null},
        stream("[1] 5\n"),
        {"type": "value", "json": 6, "repr": "[1] 6"},
    ]);
    assert_eq!(told["blocks"], blocks, "{told:#}");
    assert_eq!(told["stdout"], "1\n3\n[1] 5\n");
    for told_of in ["2\n", "4\n"] {
        let stderr = told["stderr"].as_str().unwrap();
        assert!(stderr.contains(told_of), "{told:#}");
    }

    let told = call(
        &mut server,
        json!({"stdin": "a\nb\n"}),
        "c(readline(), readLines(stdin()))",
    );
    assert_eq!(told["result"], json!(["a", "b"]), "{told:#}");
    server.close();
}

#[test]
fn r_draws_within_the_default_memory() {
    let Some(home) = Home::for_root("plots of R") else {
        return;
    };
    for code in [
        "plot(1:3, main = '\u{e9}')",
        "library(ggplot2)\nggplot(mtcars, aes(wt, mpg)) + geom_point()",
    ] {
        let told = home.result(&["--language", "r", "-c", code]);
        assert_eq!(told["ended_by"], "completed", "{told:#}");
        assert_eq!(told["stderr"], "", "{told:#}");
        let blocks = told["blocks"].as_array().unwrap();
        let [block] = blocks.as_slice() else {
            panic!("{code}: {blocks:#?}")
        };
        assert_eq!(block["mime_type"], "image/png", "{block:#}");
        // The start of a PNG file in base64.
        let picture = block["data"].as_str().unwrap();
        assert!(picture.starts_with("iVBORw0KGgo"), "{picture:.40}");
    }
    home.expect_nothing_left();
}

/// A program and what must be told of it.
struct Case {
    code: &'static str,
    with: Value,
    ended_by: &'static str,
    exit_code: Option<i64>,
    signal: Option<&'static str>,
    /// The beginning of the traceback; none is no error.
    traceback: Option<&'static str>,
}

#[test]
fn r_ends_as_is_told() {
    let Some(home) = Home::for_root("endings of R") else {
        return;
    };
    let case = |code, with, ended_by, exit_code, signal, traceback| Case {
        code,
        with,
        ended_by,
        exit_code,
        signal,
        traceback,
    };
    let failed = |code, traceback| case(code, json!({}), "error", Some(1), None, Some(traceback));
    let quit = |code, ended_by, status| case(code, json!({}), ended_by, Some(status), None, None);
    let killed =
        |code, with, ended_by, signal| case(code, with, ended_by, None, Some(signal), None);
    let cases = [
        failed(
            "f <- function(x) {\n    stop('bad')\n}\nf(1)",
            "Error in f(1) (<code>#2): bad\nTraceback:\n 1. f(1) at <code>#4",
        ),
        failed("1\nstop('no')", "Error (<code>#2): no"),
        failed("x <-", "Error: <code>:2:0: unexpected end of input"),
        failed(
            "readline('? ')",
            "Error in readline(\"? \"): no standard input: pass the text as `stdin`",
        ),
        quit("quit(status = 3)", "error", 3),
        quit("q()", "completed", 0),
        case(
            "cat('before\\n'); Sys.sleep(100)",
            json!({"timeout": 2}),
            "timeout",
            Some(130),
            None,
            Some("Error: interrupted\nTraceback:\n 1. Sys.sleep(100) at <code>#1"),
        ),
        killed(
            "system('trap \"\" INT; echo before; sleep 100')\nrepeat {}",
            json!({"timeout": 2}),
            "timeout",
            "SIGKILL",
        ),
        killed(
            "x <- list(); repeat x <- c(x, list(numeric(1e6)))",
            json!({"memory": "128m"}),
            "oom",
            "SIGKILL",
        ),
        killed(
            "tools::pskill(Sys.getpid(), 11)",
            json!({}),
            "crashed",
            "SIGSEGV",
        ),
        // What it started does not outlive it, nor is it waited for.
        quit("system('sleep 100', wait = FALSE)", "completed", 0),
        quit(
            "invisible(parallel::mcparallel(Sys.sleep(100)))",
            "completed",
            0,
        ),
    ];
    let mut server = Server::with(&home, &[("EXECUTION__CONCURRENCY", "1")]);
    assert_eq!(call(&mut server, json!({}), "1")["result"], 1);
    server.expect_rest();
    for case in cases {
        let code = case.code;
        let told = call(&mut server, case.with, code);
        assert_eq!(told["ended_by"], case.ended_by, "{code}: {told:#}");
        assert_eq!(told["exit_code"], json!(case.exit_code), "{code}: {told:#}");
        assert_eq!(told["signal"], json!(case.signal), "{code}: {told:#}");
        assert_eq!(told["limits"]["enforced"], true, "{code}: {told:#}");
        match case.traceback {
            Some(start) => {
                let traceback = told["error"]["traceback"].as_str();
                let right = traceback.is_some_and(|text| text.starts_with(start));
                assert!(right, "{code}: {told:#}");
            }
            None => assert_eq!(told["error"], Value::Null, "{code}: {told:#}"),
        }
        let printed = if code.contains("before") {
            "before\n"
        } else {
            ""
        };
        let stdout = told["stdout"].as_str().unwrap();
        assert!(stdout.contains(printed), "{code}: {told:#}");
        server.expect_rest();
    }
    server.close();
}

/// Tells of the place where it runs; a line for each fact.
const FACTS: &str = r#"
cat(system("id -u", intern = TRUE), "\n")
cat(grep("^(NoNewPrivs|Seccomp|CapEff|CapBnd|Threads):", readLines("/proc/self/status"), value = TRUE), "\n")
cat(any(grepl("canary-7f1d0c55b6", c(Sys.getenv(), names(Sys.getenv())))), "\n")
cat(file.exists(c("/root", "/home", "/var", "/etc/shadow", "/etc/R/Rprofile.site", "/etc/R/Renviron.site")), "\n")
"#;

#[test]
fn a_program_in_r_is_nobody() {
    let Some(home) = Home::for_root("isolation of R") else {
        return;
    };
    let facts = |text: &str| {
        let lines: Vec<_> = text
            .lines()
            .map(|line| line.trim().replace('\t', " "))
            .collect();
        lines
    };
    let inside = home.run(&["--language", "r", "-c", FACTS]);
    assert_eq!((inside.code(), inside.stderr.as_str()), (0, ""));
    let zero = "0000000000000000";
    assert_eq!(
        facts(&inside.stdout),
        [
            "1000".to_owned(),
            // One thread, also where OpenBLAS would start one for each CPU.
            format!("Threads: 1 CapEff: {zero} CapBnd: {zero} NoNewPrivs: 1 Seccomp: 2"),
            "FALSE".to_owned(),
            "FALSE FALSE FALSE FALSE FALSE FALSE".to_owned(),
        ]
    );
    let control = outside(&home, FACTS);
    let told = facts(&control.stdout);
    assert_eq!(told[0], "0", "{control:?}");
    assert!(told[1].contains("NoNewPrivs: 0"), "{control:?}");
    assert_eq!(told[2..], ["TRUE", "TRUE TRUE TRUE TRUE TRUE TRUE"]);

    // A server that answers outside and cannot be reached inside.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let answer = "HTTP/1.0 200 OK\r\nContent-Length: 6\r\n\r\nhello\n";
            let _ = std::io::Write::write_all(&mut &stream, answer.as_bytes());
        }
    });
    let code = format!("cat(readLines('http://127.0.0.1:{port}/'), '\\n')");
    let control = outside(&home, &code);
    assert_eq!(control.stdout, "hello \n", "{control:?}");
    let refused = home.run(&["--language", "r", "-c", &code]);
    assert_eq!((refused.code(), refused.stdout.as_str()), (1, ""));
    assert!(refused.stderr.contains("Couldn't connect"), "{refused:?}");

    // The streams, two pipes to the agent, and the runner, which R still reads.
    let code = "cat(sub('[0-9]+', 'N', Sys.readlink(file.path('/proc/self/fd', 0:5))), \
                file.exists('/proc/self/fd/6'))";
    let told = home.run(&["--language", "r", "-c", code]);
    let pipes = ["pipe:[N]"; 4].join(" ");
    let descriptors = format!("/dev/null {pipes} /run/forge/r/runner.R FALSE");
    assert_eq!(told.stdout, descriptors, "{told:?}");
    home.expect_nothing_left();
}

#[test]
fn r_gets_no_site_files() {
    let Some(home) = Home::for_root("site files of R") else {
        return;
    };
    let profile = format!("cat('profile\\n'); options(secret = '{CANARY}')\n");
    let profile = home.file("Rprofile.site", &profile);
    let environ = home.file("Renviron.site", &format!("R_SITE_TOKEN={CANARY}\n"));
    // Both where Debian has them and where R looks for them, which may be below /usr.
    let before = format!(
        "mount -t tmpfs none /mnt\n\
         cp -rL /usr/lib/R/etc /mnt/R\n\
         cp -r /etc/R /mnt/etc\n\
         cp {profile} {environ} /mnt/R\n\
         cp {profile} {environ} /mnt/etc\n\
         mount --bind /mnt/R /usr/lib/R/etc\n\
         mount --bind /mnt/etc /etc/R",
        profile = profile.display(),
        environ = environ.display(),
    );
    let show = "cat(Sys.getenv('R_SITE_TOKEN'), getOption('secret'), 'end\\n')";
    let start = format!("R --no-echo --no-save -e \"{show}\"");
    let control = elsewhere(&home, &before, &start);
    let told = format!("profile\n{CANARY} {CANARY} end\n");
    assert_eq!(control.stdout, told, "{control:?}");
    // Nor do those that a program starts read any.
    let nested = format!("cat(system(\"Rscript -e \\\"{show}\\\"\", intern = TRUE), '\\n')");
    let nested = nested.replace("end\\n", "end");
    for code in [show, &nested, "cat(list.files('/etc/R', 'site'), 'end')"] {
        let file = home.file("show.R", code);
        let told = elsewhere(&home, &before, &format!("\"$0\" run {}", file.display()));
        assert_eq!((told.code(), told.stderr.as_str()), (0, ""), "{told:?}");
        assert_eq!(told.stdout.trim(), "end", "{code}: {told:?}");
    }
    home.expect_nothing_left();
}

#[test]
fn r_files_are_told_by_their_ending() {
    let Some(home) = Home::for_root("mcp-forge run FILE.R") else {
        return;
    };
    for name in ["analysis.R", "analysis.r"] {
        let path = home.file(name, "f <- function(x) stop('bad')\nx <- 1:3\nx\nf(x)\n");
        let path = path.to_str().unwrap();
        let told = home.run(&[path]);
        assert_eq!((told.code(), told.stdout.as_str()), (1, "[1] 1 2 3\n"));
        let place = format!(" 1. f(x) at {path}#4");
        assert!(told.stderr.contains(&place), "{told:?}");
    }
    let told = home.run(&["--language", "r", "-c", "1:3"]);
    assert_eq!((told.code(), told.stdout.as_str()), (0, "[1] 1 2 3\n"));
    // What the ending says is overruled.
    let path = home.file("python.r", "print(6 * 7)\n");
    let told = home.run(&["--language", "python", path.to_str().unwrap()]);
    assert_eq!((told.code(), told.stdout.as_str()), (0, "42\n"));
    let told = home.run(&["--language", "r", "-c", "quit(status = 7)"]);
    assert_eq!((told.code(), told.stdout.as_str()), (7, ""));
    home.expect_nothing_left();
}

#[test]
fn a_host_without_r_says_so() {
    let Some(home) = Home::for_root("a host without R") else {
        return;
    };
    assert!(
        Path::new("/usr/lib/R/bin/exec/R").exists(),
        "R is not installed"
    );
    let without = "mount -t tmpfs none /usr/lib/R";
    let told = elsewhere(&home, without, "\"$0\" run --language r -c 1");
    assert_eq!((told.code(), told.stdout.as_str()), (125, ""), "{told:?}");
    let missing = "there is no R in the sandbox; install R on the host (in /usr), or use an image that has it";
    assert!(told.stderr.contains(missing), "{told:?}");
    let python = elsewhere(&home, without, "\"$0\" run -c '6*7'");
    assert_eq!((python.code(), python.stdout.as_str()), (0, "42\n"));

    let doctor = elsewhere(&home, without, "\"$0\" doctor");
    assert_eq!(doctor.code(), 0, "{doctor:?}");
    let mut lines = doctor.stdout.lines();
    let told = lines.find(|line| line.starts_with("warning  R "));
    assert!(
        told.is_some_and(|line| line.contains("there is no R")),
        "{doctor:?}"
    );
    let remedy = lines.next().unwrap();
    assert!(
        remedy.ends_with("-> apt-get install r-base-core"),
        "{doctor:?}"
    );
    let mut command = home.command();
    command.arg("doctor");
    let doctor = finish(command, b"");
    let told = doctor.stdout.lines().last().unwrap();
    assert!(told.starts_with("ok       R "), "{doctor:?}");
    assert!(told.contains("6 * 7 gave 42"), "{doctor:?}");
    home.expect_nothing_left();
}
