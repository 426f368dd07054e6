//! The contract of `ImageBuilder` on an engine. Its cases build on a small image with a shell.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures::future::BoxFuture;

use crate::driven::ImageBuilder;
use crate::vocabulary::ImageRecipe;
use crate::{PortError, PortErrorKind};

/// One statement of the contract of `ImageBuilder`.
#[derive(Clone, Copy)]
pub struct BuilderCase {
    /// What it states.
    pub name: &'static str,
    body: fn(BuilderSubject) -> BoxFuture<'static, ()>,
}

/// A builder that is held against the contract. Nobody else builds on its engine meanwhile.
#[derive(Clone)]
pub struct BuilderSubject {
    /// The adapter.
    pub builder: Arc<dyn ImageBuilder>,
    /// The same, where an image may have one megabyte.
    pub small: Arc<dyn ImageBuilder>,
    /// An image on the engine with `sh` and the usual commands.
    pub base: String,
    /// An empty directory.
    pub directory: PathBuf,
    /// A file of an image that was built, by its path without the first slash.
    pub read: fn(&Path, &str) -> Option<Vec<u8>>,
    /// Containers and images that builds have left on the engine.
    pub left: Arc<dyn Fn() -> Vec<String> + Send + Sync>,
}

impl BuilderCase {
    /// Holds a builder against it.
    ///
    /// # Panics
    ///
    /// Where the contract is broken.
    pub async fn run(&self, subject: BuilderSubject) {
        (self.body)(subject).await;
    }
}

/// A build: its end, its file and the lines that it told.
struct Build {
    ended: Result<(), PortError>,
    archive: PathBuf,
    lines: Vec<String>,
}

impl Build {
    fn failed(self) -> PortError {
        match self.ended {
            Ok(()) => panic!("it must fail: {:?}", self.lines),
            Err(error) => error,
        }
    }
}

impl BuilderSubject {
    /// A Containerfile on the base.
    fn recipe(&self, commands: &str) -> ImageRecipe {
        ImageRecipe::Containerfile {
            text: format!("FROM {}\n{commands}\n", self.base),
            arguments: BTreeMap::new(),
            network: Some("none".to_owned()),
        }
    }

    async fn build_with(
        &self,
        builder: &dyn ImageBuilder,
        recipe: &ImageRecipe,
        file: &str,
    ) -> Build {
        let archive = self.directory.join(file);
        let told = Arc::new(Mutex::new(Vec::new()));
        let into = Arc::clone(&told);
        let log = Arc::new(move |line: &str| into.lock().unwrap().push(line.to_owned()));
        let ended = builder.build(recipe, &archive, log).await;
        let lines = told.lock().unwrap().clone();
        Build {
            ended,
            archive,
            lines,
        }
    }

    async fn build(&self, recipe: &ImageRecipe) -> Build {
        let built = self.build_with(self.builder.as_ref(), recipe, "image.tar");
        built.await
    }

    async fn builds(&self, recipe: &ImageRecipe) -> Build {
        let built = self.build(recipe).await;
        if let Err(error) = &built.ended {
            panic!("{}: {:?}", error.chain(), built.lines);
        }
        built
    }

    /// An engine clears up behind those who went away.
    async fn nothing_is_left(&self) {
        let until = Instant::now() + Duration::from_secs(60);
        loop {
            let left = (self.left)();
            if left.is_empty() {
                return;
            }
            assert!(Instant::now() < until, "left on the engine: {left:?}");
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }
}

macro_rules! builder_contract {
    ($($name:ident,)*) => {
        /// Every case; the names are unique.
        pub fn builder_cases() -> Vec<BuilderCase> {
            vec![$(BuilderCase {
                name: stringify!($name),
                body: |subject| Box::pin($name(subject)),
            }),*]
        }
    };
}

builder_contract! {
    what_commands_write_is_in_the_image,
    arguments_reach_the_commands,
    what_commands_print_is_told,
    a_failing_command_fails_the_build,
    a_base_that_is_not_there_fails_the_build,
    what_is_no_containerfile_fails,
    a_file_that_is_there_stays,
    endless_output_comes_in_bounded_lines,
    terminals_are_not_controlled,
    without_a_network_there_is_none,
    nothing_of_this_host_can_be_copied,
    two_build_at_once,
    a_build_that_is_dropped_ends,
    an_image_that_is_too_large_is_refused,
    sets_of_packages_are_for_another_builder,
}

async fn what_commands_write_is_in_the_image(subject: BuilderSubject) {
    let built = subject
        .builds(&subject.recipe("RUN mkdir /made && echo data > /made/file"))
        .await;
    let read = |path| (subject.read)(&built.archive, path);
    assert_eq!(read("made/file").as_deref(), Some(b"data\n".as_slice()));
    assert!(read("bin/busybox").is_some_and(|bytes| bytes.len() > 1000));
    assert_eq!(read("made/other"), None);
    subject.nothing_is_left().await;
}

async fn arguments_reach_the_commands(subject: BuilderSubject) {
    let words = "two words, \"quotes\", $HOME, 100% & \u{e4}\u{4e16}";
    let recipe = ImageRecipe::Containerfile {
        text: "ARG BASE\nFROM ${BASE}\nARG WORDS\nARG NOT=default\nRUN printf '%s|%s' \"$WORDS\" \"$NOT\" > /said\n".to_owned(),
        arguments: BTreeMap::from([
            ("BASE".to_owned(), subject.base.clone()),
            ("WORDS".to_owned(), words.to_owned()),
        ]),
        network: Some("none".to_owned()),
    };
    let built = subject.builds(&recipe).await;
    let said = (subject.read)(&built.archive, "said").unwrap_or_default();
    assert_eq!(String::from_utf8_lossy(&said), format!("{words}|default"));
}

async fn what_commands_print_is_told(subject: BuilderSubject) {
    let recipe = subject.recipe("RUN echo one; sleep 1; echo two >&2; sleep 1; echo three");
    let lines = subject.builds(&recipe).await.lines;
    for word in ["one", "two", "three"] {
        let told = lines.iter().filter(|line| line.as_str() == word).count();
        assert_eq!(told, 1, "{word}: {lines:?}");
    }
    assert!(lines.iter().all(|line| !line.is_empty()));
}

async fn a_failing_command_fails_the_build(subject: BuilderSubject) {
    let recipe = subject.recipe("RUN echo why it fails; exit 7\nRUN touch /never");
    let built = subject.build(&recipe).await;
    assert!(
        built.lines.contains(&"why it fails".to_owned()),
        "{:?}",
        built.lines
    );
    let error = built.failed();
    assert_eq!(error.kind, PortErrorKind::Unsupported);
    assert!(
        error.context.contains('7') && error.hint.is_some(),
        "{error:?}"
    );
    subject.nothing_is_left().await;
}

async fn a_base_that_is_not_there_fails_the_build(subject: BuilderSubject) {
    let recipe = ImageRecipe::Containerfile {
        text: "FROM localhost/mcp-forge-test/nowhere:1\nRUN true\n".to_owned(),
        arguments: BTreeMap::new(),
        network: Some("none".to_owned()),
    };
    let built = subject.build(&recipe).await;
    let named = built.lines.iter().any(|line| line.contains("nowhere"));
    assert!(named, "{:?}", built.lines);
    let error = built.failed();
    assert_eq!(error.kind, PortErrorKind::Unsupported, "{}", error.chain());
    assert!(error.hint.is_some_and(|hint| hint.contains("BASE")));
    subject.nothing_is_left().await;
}

async fn what_is_no_containerfile_fails(subject: BuilderSubject) {
    for text in [
        "",
        "\n\n",
        "# nothing\n",
        "COOK soup\n",
        "RUN true\n",
        "FROM\n",
        "\0\u{1}",
    ] {
        let recipe = ImageRecipe::Containerfile {
            text: text.to_owned(),
            arguments: BTreeMap::new(),
            network: None,
        };
        let error = subject.build(&recipe).await.failed();
        assert_eq!(
            error.kind,
            PortErrorKind::Unsupported,
            "{text:?}: {}",
            error.chain()
        );
        assert!(!error.context.chars().any(char::is_control), "{error:?}");
    }
    subject.nothing_is_left().await;
}

async fn a_file_that_is_there_stays(subject: BuilderSubject) {
    let file = subject.directory.join("image.tar");
    std::fs::write(&file, "mine").unwrap();
    let error = subject.build(&subject.recipe("RUN true")).await.failed();
    assert_eq!(error.kind, PortErrorKind::Internal, "{}", error.chain());
    assert_eq!(std::fs::read(&file).unwrap(), b"mine");
    subject.nothing_is_left().await;
}

async fn endless_output_comes_in_bounded_lines(subject: BuilderSubject) {
    let recipe = subject.recipe("RUN yes y | head -c 4000000 | tr -d '\\n'; echo; echo end");
    let lines = subject.builds(&recipe).await.lines;
    assert!(lines.contains(&"end".to_owned()));
    let longest = lines.iter().map(String::len).max();
    assert!(
        longest.is_some_and(|longest| longest <= 2000),
        "{longest:?}"
    );
}

async fn terminals_are_not_controlled(subject: BuilderSubject) {
    let recipe = subject.recipe("RUN printf 'a\\033[2Jb\\007c\\nd\\010e\\n'");
    let lines = subject.builds(&recipe).await.lines;
    let control = lines.iter().find(|line| line.chars().any(char::is_control));
    assert_eq!(control, None);
    assert!(lines.iter().any(|line| line.starts_with("ab")), "{lines:?}");
}

async fn without_a_network_there_is_none(subject: BuilderSubject) {
    let recipe = subject.recipe("RUN cat /proc/net/dev > /seen");
    let built = subject.builds(&recipe).await;
    let seen = (subject.read)(&built.archive, "seen").unwrap_or_default();
    let seen = String::from_utf8_lossy(&seen).into_owned();
    let names: Vec<&str> = seen
        .lines()
        .filter_map(|line| line.split_once(':'))
        .map(|(name, _)| name.trim())
        .collect();
    assert_eq!(names, ["lo"], "{seen}");
}

async fn nothing_of_this_host_can_be_copied(subject: BuilderSubject) {
    for source in ["/etc/passwd", "../../etc/passwd", "image.tar"] {
        let recipe = subject.recipe(&format!("COPY {source} /stolen"));
        let error = subject.build(&recipe).await.failed();
        assert_eq!(error.kind, PortErrorKind::Unsupported, "{}", error.chain());
    }
    // What can be: the Containerfile itself.
    let built = subject.builds(&subject.recipe("COPY . /copied/")).await;
    let copied = (subject.read)(&built.archive, "copied/Containerfile");
    assert!(copied.is_some_and(|bytes| bytes.starts_with(b"FROM ")));
    subject.nothing_is_left().await;
}

async fn two_build_at_once(subject: BuilderSubject) {
    let of = |word: &str| subject.recipe(&format!("RUN sleep 1; echo {word} > /word"));
    let (one, two) = (of("one"), of("two"));
    let (one, two) = futures::join!(
        subject.build_with(subject.builder.as_ref(), &one, "one.tar"),
        subject.build_with(subject.builder.as_ref(), &two, "two.tar"),
    );
    for (built, word) in [(one, "one\n"), (two, "two\n")] {
        built.ended.unwrap();
        let read = (subject.read)(&built.archive, "word").unwrap_or_default();
        assert_eq!(String::from_utf8_lossy(&read), word);
    }
    subject.nothing_is_left().await;
}

async fn a_build_that_is_dropped_ends(subject: BuilderSubject) {
    let recipe = subject.recipe("RUN echo begun; sleep 15\nRUN sleep 1000");
    let (begun, mut has_begun) = tokio::sync::mpsc::unbounded_channel();
    let log = Arc::new(move |line: &str| {
        if line == "begun" {
            let _ = begun.send(());
        }
    });
    let archive = subject.directory.join("image.tar");
    {
        let build = subject.builder.build(&recipe, &archive, log);
        tokio::select! {
            ended = build => panic!("it ended: {ended:?}"),
            begun = has_begun.recv() => assert_eq!(begun, Some(())),
        }
    }
    subject.nothing_is_left().await;
    // The engine takes the next one.
    subject.builds(&subject.recipe("RUN true")).await;
}

async fn an_image_that_is_too_large_is_refused(subject: BuilderSubject) {
    let recipe = subject.recipe("RUN head -c 3000000 /dev/zero > /large");
    let small = subject.small.as_ref();
    let error = subject
        .build_with(small, &recipe, "image.tar")
        .await
        .failed();
    assert_eq!(
        error.kind,
        PortErrorKind::LimitExceeded,
        "{}",
        error.chain()
    );
    assert!(
        error
            .hint
            .is_some_and(|hint| hint.contains("images.max_size"))
    );
    let written = std::fs::metadata(subject.directory.join("image.tar")).unwrap();
    assert!(written.len() <= 1 << 20, "{}", written.len());
    subject.nothing_is_left().await;
}

async fn sets_of_packages_are_for_another_builder(subject: BuilderSubject) {
    let recipe = ImageRecipe::Packages("python".to_owned());
    let error = subject.build(&recipe).await.failed();
    assert_eq!(error.kind, PortErrorKind::Unsupported);
    assert!(error.hint.is_some_and(|hint| hint.contains("debian")));
}
