//! The contract of `ImageStore`, held against the images on disk.

use std::fs::{self, File};
use std::path::Path;
use std::sync::{Arc, Mutex};

use libtest_mimic::{Failed, Trial};
use mcp_forge_images::{Bounds, DiskImages};
use mcp_forge_ports::contract::{StoreCase, StoreSubject, store_cases};

use crate::engines::block_on;
use crate::parity::Outcomes;

/// The one store.
pub(crate) const STORE: &str = "images on disk";

pub(crate) fn trials(outcomes: &Arc<Mutex<Outcomes>>) -> Vec<Trial> {
    let of = |case: StoreCase| {
        let name = format!("{STORE}::{}", case.name);
        crate::trial(name, case.name, STORE, outcomes, move || {
            hold(case).map(|()| None)
        })
    };
    store_cases().into_iter().map(of).collect()
}

fn hold(case: StoreCase) -> Result<(), Failed> {
    let directory = tempfile::tempdir()?;
    let images = directory.path().join("images");
    let sources = directory.path().join("sources");
    fs::create_dir(&sources)?;
    let store = || Arc::new(DiskImages::new(images.clone(), Bounds::default()));
    let roots = images.clone();
    let subject = StoreSubject {
        store: store(),
        other: store(),
        directory: sources,
        archive: |path, contents| archive(path, "mark", contents),
        hostile: |path| archive(path, "../mark", b"out"),
        kept: Arc::new(move || kept(&roots)),
    };
    block_on(async {
        let held = tokio::spawn(async move { case.run(subject).await });
        held.await
            .map_err(|panicked| crate::message(panicked).into())
    })?
}

/// A tar with one file. The library would refuse some names.
fn archive(path: &Path, name: &str, contents: &[u8]) {
    let mut header = tar::Header::new_gnu();
    header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
    header.set_mode(0o644);
    header.set_size(contents.len() as u64);
    header.set_cksum();
    let mut tar = tar::Builder::new(File::create(path).unwrap());
    tar.append(&header, contents).unwrap();
    tar.finish().unwrap();
}

/// Root file systems, locks of images and what was begun: of each image that is there, one root and at most one lock.
fn kept(images: &Path) -> usize {
    let names = |directory: &Path| -> Vec<String> {
        let entries = fs::read_dir(directory).into_iter().flatten().flatten();
        entries
            .map(|entry| entry.file_name().into_string().unwrap())
            .collect()
    };
    let roots = names(&images.join("roots"));
    let begun = names(images)
        .into_iter()
        .filter(|name| name.starts_with("staging-"));
    let locks = names(&images.join("locks"))
        .into_iter()
        .filter(|id| !roots.contains(id));
    begun.count() + locks.count() + roots.len()
}
