//! Pictures at a terminal, from real plots of both languages.

use std::fs;
use std::process::Stdio;

use serde_json::Value;

use crate::home::{Home, collect, end_of};

const PLOTS: [(&str, &str); 2] = [
    (
        "plots.py",
        "import matplotlib.pyplot as plt\nfor n in 1, 2:\n    plt.plot([n, 2])\n    plt.show()\n",
    ),
    ("plots.R", "for (n in 1:2) plot(n)\n"),
];

#[test]
fn plots_are_saved_again_under_the_same_names() {
    let Some(home) = Home::for_root("--save-plots") else {
        return;
    };
    let directory = home.path().join("some plots");
    let named = directory.to_str().unwrap();
    for (name, code) in PLOTS {
        let file = home.file(name, code);
        let finished = home.run(&[file.to_str().unwrap(), "--save-plots", named]);
        assert_eq!((finished.code(), finished.stdout.as_str()), (0, ""));
        for number in 1..=2 {
            let path = directory.join(format!("plot-00{number}.png"));
            assert!(fs::read(&path).unwrap().starts_with(b"\x89PNG\r\n"));
            let told = format!("mcp-forge: saved {}\n", path.display());
            assert!(finished.stderr.contains(&told), "{}", finished.stderr);
        }
        assert_eq!(fs::read_dir(&directory).unwrap().count(), 2);
    }
    let told = home.result(&["--language", "r", "-c", "plot(1)", "--save-plots", named]);
    let saved = &told["blocks"][0]["saved_as"];
    assert_eq!(saved, &format!("{named}/plot-001.png"));
    fs::remove_dir_all(&directory).unwrap();
    home.expect_nothing_left();
}

#[test]
fn a_terminal_draws_them_and_elsewhere_they_are_told_of() {
    let Some(home) = Home::for_root("--plots") else {
        return;
    };
    for (name, code) in PLOTS {
        let file = home.file(name, code);
        let file = file.to_str().unwrap();
        let silent = home.run(&[file]);
        assert_eq!(silent.stdout, "");
        assert!(
            silent
                .stderr
                .contains("2 pictures are not shown here; --save-plots"),
            "{}",
            silent.stderr
        );
        for (how, begin) in [
            ("kitty", "\x1b_Ga=T,f=100,q=2,m=1;iVBORw0KGgo"),
            ("iterm2", "\x1b]1337;File=inline=1;size="),
            ("sixel", "\x1bPq\"1;1;"),
        ] {
            let drawn = home.run(&[file, "--plots", how]);
            assert_eq!(drawn.stdout.matches(begin).count(), 2, "{name} {how}");
            assert_eq!((drawn.code(), drawn.stderr.as_str()), (0, ""));
        }
        let refused = home.run(&[file, "--plots", "none"]);
        assert_eq!((refused.stdout.as_str(), refused.stderr.as_str()), ("", ""));
    }
    home.expect_nothing_left();
}

#[test]
fn a_directory_that_takes_nothing_is_told_before_the_run() {
    let Some(home) = Home::for_root("--save-plots of a file") else {
        return;
    };
    let file = home.file("file", "");
    let refused = home.run(&["-c", "print(1)", "--save-plots", file.to_str().unwrap()]);
    assert_eq!((refused.code(), refused.stdout.as_str()), (125, ""));
    assert!(
        refused.stderr.contains("cannot save plots in"),
        "{}",
        refused.stderr
    );
    assert_eq!(home.audit(), [Value::Null; 0]);
}

#[test]
fn who_does_not_read_the_drawing_does_not_keep_the_program() {
    let Some(home) = Home::for_root("--plots into a pipe that nobody reads") else {
        return;
    };
    let code = "class Picture:\n    def _repr_png_(self):\n        \
                return b'\\x89PNG\\r\\n\\x1a\\n\\0\\0\\0\\x0dIHDR' + b'\\0\\0\\0\\1' * 100_000\n\
                display(Picture())\nimport time; time.sleep(60)";
    let directory = home.path().join("plots");
    let mut command = home.command();
    command
        .args(["run", "--timeout", "1", "--plots", "kitty", "-c", code])
        .arg("--save-plots")
        .arg(&directory)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let stderr = collect(child.stderr.take());
    // Standard output stays open, and full.
    assert_eq!(end_of(&mut child).code(), Some(124));
    let told = stderr.join().unwrap();
    assert!(told.contains("time limit of 1 s reached"), "{told}");
    assert_eq!(fs::read_dir(&directory).unwrap().count(), 1);
    fs::remove_dir_all(&directory).unwrap();
    home.expect_nothing_left();
}
