//! The contract of `ImageStore`.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::future::BoxFuture;

use crate::driven::{ImageProgress, ImageStore};
use crate::vocabulary::Image;
use crate::{PortError, PortErrorKind};

/// One statement of the contract of `ImageStore`.
#[derive(Clone, Copy)]
pub struct StoreCase {
    /// What it states.
    pub name: &'static str,
    body: fn(StoreSubject) -> BoxFuture<'static, ()>,
}

/// An empty store that is held against the contract.
#[derive(Clone)]
pub struct StoreSubject {
    /// The adapter.
    pub store: Arc<dyn ImageStore>,
    /// The same images, as another process sees them.
    pub other: Arc<dyn ImageStore>,
    /// An empty directory for what is imported.
    pub directory: PathBuf,
    /// Writes an archive of a root file system with one file, `mark`, with these contents.
    pub archive: fn(&Path, &[u8]),
    /// The same with a name that leads out of it.
    pub hostile: fn(&Path),
    /// How many images and parts of images are kept, in the index or not.
    pub kept: Arc<dyn Fn() -> usize + Send + Sync>,
}

impl StoreCase {
    /// Holds a store against it.
    ///
    /// # Panics
    ///
    /// Where the contract is broken.
    pub async fn run(&self, subject: StoreSubject) {
        (self.body)(subject).await;
    }
}

/// Tells nobody.
fn silent() -> ImageProgress {
    Arc::new(|_, _| {})
}

fn refused<T>(done: Result<T, PortError>, kind: PortErrorKind) -> PortError {
    match done {
        Ok(_) => panic!("it must be refused"),
        Err(error) => {
            assert_eq!(error.kind, kind, "{}", error.chain());
            assert!(!error.context.chars().any(char::is_control), "{error:?}");
            error
        }
    }
}

impl StoreSubject {
    /// A file that holds an image of its own for each mark.
    fn source(&self, mark: &str) -> PathBuf {
        let path = self.directory.join(format!("{mark}.tar"));
        (self.archive)(&path, mark.as_bytes());
        path
    }

    async fn import(&self, mark: &str) -> Image {
        let source = self.source(mark);
        let imported = self.store.import(&source, silent()).await;
        imported
            .unwrap_or_else(|error| panic!("{}", error.chain()))
            .image
    }

    async fn tagged(&self, mark: &str, name: &str) -> Image {
        let image = self.import(mark).await;
        self.store.tag(&image.id, name).await.unwrap()
    }

    async fn found(&self, image: &str) -> Option<String> {
        match self.store.find(image).await {
            Ok(found) => Some(found.id),
            Err(error) if error.kind == PortErrorKind::NotFound => None,
            Err(error) => panic!("{}", error.chain()),
        }
    }

    async fn names(&self) -> Vec<String> {
        let images = self.store.list().await.unwrap();
        let mut names: Vec<String> = images.into_iter().flat_map(|image| image.names).collect();
        names.sort();
        names
    }
}

macro_rules! store_contract {
    ($($name:ident,)*) => {
        /// Every case; the names are unique.
        pub fn store_cases() -> Vec<StoreCase> {
            vec![$(StoreCase {
                name: stringify!($name),
                body: |subject| Box::pin($name(subject)),
            }),*]
        }
    };
}

store_contract! {
    an_empty_store_lists_nothing,
    what_is_not_there_is_not_found,
    an_imported_image_is_listed,
    the_same_contents_are_one_image,
    the_same_contents_imported_at_once_are_one_image,
    other_contents_are_another_image,
    an_image_is_found_by_id_and_name,
    few_digits_find_nothing,
    a_name_moves_to_another_image,
    a_name_given_again_is_there_once,
    odd_names_are_names,
    an_unknown_image_gets_no_name,
    removing_one_of_several_names_keeps_the_image,
    removing_the_last_name_removes_everything,
    an_image_without_a_name_is_removed_by_its_id,
    removing_what_is_not_there_is_nothing,
    a_held_image_is_not_removed,
    a_hold_by_another_counts_as_well,
    every_hold_counts,
    a_hold_and_a_removal_at_once_are_never_both_done,
    what_is_not_there_is_not_held,
    what_is_no_image_is_refused,
    a_hostile_archive_is_refused,
    an_image_that_was_removed_is_imported_again,
    progress_never_goes_back_and_arrives,
    an_import_that_is_given_up_leaves_nothing,
    another_process_sees_the_same,
    names_given_at_once_are_all_there,
    imports_and_removals_at_once_lose_nothing,
}

async fn an_empty_store_lists_nothing(subject: StoreSubject) {
    assert_eq!(subject.store.list().await.unwrap(), []);
    assert_eq!((subject.kept)(), 0);
}

async fn what_is_not_there_is_not_found(subject: StoreSubject) {
    let id = "0".repeat(64);
    let of_it = format!("sha256:{id}");
    for image in ["docker.io/mcp-forge/none:1", &id, &of_it, "", "..", "a\nb"] {
        let error = refused(subject.store.find(image).await, PortErrorKind::NotFound);
        assert!(
            error.hint.is_some_and(|hint| hint.contains("images")),
            "{image:?}"
        );
    }
}

async fn an_imported_image_is_listed(subject: StoreSubject) {
    let before = std::time::SystemTime::now() - Duration::from_secs(2);
    let image = subject.import("one").await;
    assert!(image.id.len() == 64 && image.id.bytes().all(|byte| byte.is_ascii_hexdigit()));
    assert_eq!(image.names, Vec::<String>::new());
    assert!(image.bytes >= 3 && image.imported >= before, "{image:?}");
    assert_eq!(subject.store.list().await.unwrap(), [image]);
    assert_eq!((subject.kept)(), 1);
}

async fn the_same_contents_are_one_image(subject: StoreSubject) {
    let first = subject.tagged("one", "docker.io/a/b:1").await;
    let copy = subject.directory.join("copy");
    std::fs::copy(subject.source("one"), &copy).unwrap();
    let second = subject.store.import(&copy, silent()).await.unwrap().image;
    assert_eq!(second, first);
    assert_eq!((subject.kept)(), 1);
}

async fn the_same_contents_imported_at_once_are_one_image(subject: StoreSubject) {
    let source = subject.source("one");
    let imports = (0..8).map(|n| {
        let store = if n % 2 == 0 {
            &subject.store
        } else {
            &subject.other
        };
        store.import(&source, silent())
    });
    let imported = futures::future::join_all(imports).await;
    let ids: Vec<String> = imported
        .into_iter()
        .map(|one| one.unwrap().image.id)
        .collect();
    assert!(ids.iter().all(|id| *id == ids[0]), "{ids:?}");
    assert_eq!(subject.store.list().await.unwrap().len(), 1);
    assert_eq!((subject.kept)(), 1);
}

async fn other_contents_are_another_image(subject: StoreSubject) {
    let (one, two) = (subject.import("one").await, subject.import("two").await);
    assert_ne!(one.id, two.id);
    assert_eq!(subject.store.list().await.unwrap().len(), 2);
}

async fn an_image_is_found_by_id_and_name(subject: StoreSubject) {
    let name = "docker.io/mcp-forge/python:3.13";
    let id = subject.tagged("one", name).await.id;
    subject.tagged("two", "docker.io/mcp-forge/r:4").await;
    let digest = format!("sha256:{id}");
    let of_name = format!("docker.io/mcp-forge/python@sha256:{id}");
    for image in [name, &id, &digest, &id[..12], &digest[..7 + 12], &of_name] {
        assert_eq!(
            subject.found(image).await.as_deref(),
            Some(id.as_str()),
            "{image}"
        );
    }
    let of_another = format!("docker.io/mcp-forge/r@sha256:{id}");
    for image in [
        "docker.io/mcp-forge/python:3.1",
        "mcp-forge/python:3.13",
        &of_another,
    ] {
        assert_eq!(subject.found(image).await, None, "{image}");
    }
}

async fn few_digits_find_nothing(subject: StoreSubject) {
    let id = subject.import("one").await.id;
    for digits in [&id[..11], &id[..1], &id[1..]] {
        assert_eq!(subject.found(digits).await, None, "{digits}");
    }
    // Other digits are another image, in capitals as well.
    assert_eq!(subject.found(&format!("{id}0")).await, None);
}

async fn a_name_moves_to_another_image(subject: StoreSubject) {
    let name = "docker.io/a/b:1";
    let one = subject.tagged("one", name).await;
    let two = subject.tagged("two", name).await;
    assert_eq!(subject.found(name).await, Some(two.id));
    assert_eq!(subject.names().await, [name]);
    assert_eq!(subject.found(&one.id).await, Some(one.id));
}

async fn a_name_given_again_is_there_once(subject: StoreSubject) {
    let name = "docker.io/a/b:1";
    let image = subject.tagged("one", name).await;
    let again = subject.store.tag(&image.id, name).await.unwrap();
    assert_eq!(again.names, [name]);
    assert_eq!(subject.names().await, [name]);
}

async fn odd_names_are_names(subject: StoreSubject) {
    let names = [
        "localhost:5000/a/b_c/d--e/f.g:V1.0_x-Y",
        "registry.example:443/x:latest",
        "docker.io/library/a:0",
        "[::1]:5000/x:1",
    ];
    let id = subject.import("one").await.id;
    for name in names {
        subject.store.tag(&id, name).await.unwrap();
    }
    for name in names {
        assert_eq!(subject.found(name).await.as_ref(), Some(&id), "{name}");
    }
    assert_eq!(subject.names().await.len(), names.len());
}

async fn an_unknown_image_gets_no_name(subject: StoreSubject) {
    let id = subject.tagged("one", "docker.io/a/b:1").await.id;
    for unknown in ["0".repeat(64), String::new(), "docker.io/a/c:1".to_owned()] {
        refused(
            subject.store.tag(&unknown, "docker.io/a/b:1").await,
            PortErrorKind::Unsupported,
        );
    }
    // Its owner keeps the name.
    assert_eq!(subject.found("docker.io/a/b:1").await, Some(id));
}

async fn removing_one_of_several_names_keeps_the_image(subject: StoreSubject) {
    let id = subject.tagged("one", "docker.io/a/b:1").await.id;
    subject.store.tag(&id, "docker.io/a/b:2").await.unwrap();
    // One in use may lose a name.
    let held = subject.store.hold(&id).await.unwrap();
    subject.store.remove("docker.io/a/b:1").await.unwrap();
    drop(held);
    assert_eq!(subject.names().await, ["docker.io/a/b:2"]);
    assert_eq!((subject.kept)(), 1);
}

async fn removing_the_last_name_removes_everything(subject: StoreSubject) {
    let id = subject.tagged("one", "docker.io/a/b:1").await.id;
    subject.store.remove("docker.io/a/b:1").await.unwrap();
    assert_eq!(subject.store.list().await.unwrap(), []);
    assert_eq!(subject.found(&id).await, None);
    assert_eq!((subject.kept)(), 0);
}

async fn an_image_without_a_name_is_removed_by_its_id(subject: StoreSubject) {
    for digits in [12, 64] {
        let id = subject.import("one").await.id;
        subject.store.remove(&id[..digits]).await.unwrap();
        assert_eq!((subject.kept)(), 0);
    }
}

async fn removing_what_is_not_there_is_nothing(subject: StoreSubject) {
    subject.tagged("one", "docker.io/a/b:1").await;
    for image in ["docker.io/a/b:2", "", "..", &"0".repeat(64)] {
        subject.store.remove(image).await.unwrap();
    }
    assert_eq!(subject.names().await, ["docker.io/a/b:1"]);
}

async fn a_held_image_is_not_removed(subject: StoreSubject) {
    let id = subject.tagged("one", "docker.io/a/b:1").await.id;
    let held = subject.store.hold(&id).await.unwrap();
    for image in [id.as_str(), "docker.io/a/b:1"] {
        let error = refused(
            subject.store.remove(image).await,
            PortErrorKind::AlreadyExists,
        );
        assert!(error.context.contains("in use") && error.hint.is_some());
    }
    assert_eq!(subject.names().await, ["docker.io/a/b:1"]);
    assert_eq!((subject.kept)(), 1);
    drop(held);
    subject.store.remove(&id).await.unwrap();
    assert_eq!((subject.kept)(), 0);
}

async fn a_hold_by_another_counts_as_well(subject: StoreSubject) {
    let id = subject.import("one").await.id;
    let held = subject.other.hold(&id).await.unwrap();
    refused(
        subject.store.remove(&id).await,
        PortErrorKind::AlreadyExists,
    );
    drop(held);
    subject.store.remove(&id).await.unwrap();
}

async fn every_hold_counts(subject: StoreSubject) {
    let id = subject.import("one").await.id;
    let first = subject.store.hold(&id).await.unwrap();
    let second = subject.store.hold(&id).await.unwrap();
    drop(first);
    refused(
        subject.store.remove(&id).await,
        PortErrorKind::AlreadyExists,
    );
    drop(second);
    subject.store.remove(&id).await.unwrap();
}

async fn a_hold_and_a_removal_at_once_are_never_both_done(subject: StoreSubject) {
    for _ in 0..40 {
        let id = subject.import("one").await.id;
        let (held, removed) = futures::join!(subject.store.hold(&id), subject.other.remove(&id));
        match (held, removed) {
            (Ok(held), Err(error)) => {
                assert_eq!(
                    error.kind,
                    PortErrorKind::AlreadyExists,
                    "{}",
                    error.chain()
                );
                assert_eq!(subject.found(&id).await, Some(id));
                drop(held);
            }
            (Err(error), Ok(())) => {
                assert_eq!(error.kind, PortErrorKind::NotFound, "{}", error.chain());
            }
            (held, removed) => panic!("held: {}, removed: {removed:?}", held.is_ok()),
        }
    }
}

async fn what_is_not_there_is_not_held(subject: StoreSubject) {
    let image = subject.tagged("one", "docker.io/a/b:1").await;
    subject.store.remove(&image.id).await.unwrap();
    for id in [image.id.as_str(), "docker.io/a/b:1", "", "..", "../roots"] {
        refused(
            subject.store.hold(id).await.map(drop),
            PortErrorKind::NotFound,
        );
    }
}

async fn what_is_no_image_is_refused(subject: StoreSubject) {
    let text = subject.directory.join("text");
    std::fs::write(&text, "this is no archive\n".repeat(1000)).unwrap();
    let empty = subject.directory.join("empty");
    std::fs::write(&empty, "").unwrap();
    let nowhere = subject.directory.join("nowhere");
    for source in [&text, &empty, &nowhere, &subject.directory] {
        let done = subject.store.import(source, silent()).await;
        let error = refused(done, PortErrorKind::Unsupported);
        assert!(error.hint.is_some(), "{error:?}");
    }
    assert_eq!(subject.store.list().await.unwrap(), []);
    assert_eq!((subject.kept)(), 0);
}

async fn a_hostile_archive_is_refused(subject: StoreSubject) {
    let source = subject.directory.join("hostile.tar");
    (subject.hostile)(&source);
    refused(
        subject.store.import(&source, silent()).await,
        PortErrorKind::Denied,
    );
    assert_eq!(subject.store.list().await.unwrap(), []);
    assert_eq!((subject.kept)(), 0);
    // The store takes others.
    subject.import("one").await;
}

async fn an_image_that_was_removed_is_imported_again(subject: StoreSubject) {
    let first = subject.tagged("one", "docker.io/a/b:1").await;
    subject.store.remove(&first.id).await.unwrap();
    let second = subject.import("one").await;
    assert_eq!((second.id, second.names), (first.id, Vec::new()));
    assert_eq!((subject.kept)(), 1);
}

async fn progress_never_goes_back_and_arrives(subject: StoreSubject) {
    let source = subject.directory.join("large.tar");
    (subject.archive)(&source, &vec![7; 3 << 20]);
    let told = Arc::new(Mutex::new(Vec::new()));
    let into = Arc::clone(&told);
    let progress: ImageProgress = Arc::new(move |done, all| into.lock().unwrap().push((done, all)));
    subject.store.import(&source, progress).await.unwrap();
    let told = told.lock().unwrap();
    assert!(told.is_sorted_by_key(|(done, _)| *done), "{told:?}");
    assert!(told.iter().all(|(done, all)| done <= all), "{told:?}");
    let length = std::fs::metadata(&source).unwrap().len();
    assert_eq!(told.last(), Some(&(length, length)));
}

async fn an_import_that_is_given_up_leaves_nothing(subject: StoreSubject) {
    let source = subject.directory.join("large.tar");
    (subject.archive)(&source, &vec![7; 64 << 20]);
    for wait in [0, 1, 5] {
        let import = subject.store.import(&source, silent());
        let given_up = tokio::time::timeout(Duration::from_millis(wait), import).await;
        if given_up.is_ok_and(|imported| imported.is_ok()) {
            // It was faster.
            for image in subject.store.list().await.unwrap() {
                subject.store.remove(&image.id).await.unwrap();
            }
        }
    }
    // Whoever comes next waits for what was given up.
    let one = subject.import("one").await;
    let large = subject.store.list().await.unwrap();
    for image in large.iter().filter(|image| image.id != one.id) {
        subject.store.remove(&image.id).await.unwrap();
    }
    assert_eq!(subject.store.list().await.unwrap(), [one]);
    assert_eq!((subject.kept)(), 1);
}

async fn another_process_sees_the_same(subject: StoreSubject) {
    let image = subject.tagged("one", "docker.io/a/b:1").await;
    assert_eq!(
        subject.other.list().await.unwrap(),
        std::slice::from_ref(&image)
    );
    subject
        .other
        .tag(&image.id, "docker.io/a/b:2")
        .await
        .unwrap();
    assert_eq!(
        subject.names().await,
        ["docker.io/a/b:1", "docker.io/a/b:2"]
    );
    subject.other.remove("docker.io/a/b:1").await.unwrap();
    subject.other.remove("docker.io/a/b:2").await.unwrap();
    assert_eq!(subject.store.list().await.unwrap(), []);
    assert_eq!((subject.kept)(), 0);
}

async fn names_given_at_once_are_all_there(subject: StoreSubject) {
    let id = subject.import("one").await.id;
    let names: Vec<String> = (10..30).map(|n| format!("docker.io/a/b:{n}")).collect();
    let tags = names.iter().enumerate().map(|(n, name)| {
        let store = if n % 2 == 0 {
            &subject.store
        } else {
            &subject.other
        };
        store.tag(&id, name)
    });
    for tagged in futures::future::join_all(tags).await {
        tagged.unwrap();
    }
    assert_eq!(subject.names().await, names);
}

async fn imports_and_removals_at_once_lose_nothing(subject: StoreSubject) {
    let subject = &subject;
    let one = |n: u32| async move {
        let name = format!("docker.io/a/b:{n}");
        let image = subject.tagged(&format!("mark-{n}"), &name).await;
        if n.is_multiple_of(2) {
            subject.other.remove(&name).await.unwrap();
        }
        (name, image.id)
    };
    let made = futures::future::join_all((0..10).map(one)).await;
    for (n, (name, id)) in made.iter().enumerate() {
        let expected = (n % 2 == 1).then_some(id);
        assert_eq!(subject.found(name).await.as_ref(), expected, "{name}");
    }
    assert_eq!((subject.kept)(), 5);
}
