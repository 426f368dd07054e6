//! What every adapter of a port must do, as cases that run against any of them.
//!
//! A case gets a [`Subject`] and panics where the contract is broken. Cases of life ask for
//! nothing but the port; cases of programs start real ones in Python, and so need a runtime that
//! runs them and the agent's own `Guest`. Sandboxes get names of their own, so that several cases
//! can use one runtime at the same time, also of several processes.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

mod barriers;
mod image_builder;
mod image_store;
mod life;
mod limits;
mod programs;
mod streams;
mod subject;

use std::sync::Arc;

use async_trait::async_trait;
use futures::future::BoxFuture;

use crate::driven::{ContainerRuntime, Guest};
use crate::vocabulary::SandboxId;

pub use image_builder::{BuilderCase, BuilderSubject, builder_cases};
pub use image_store::{StoreCase, StoreSubject, store_cases};

/// One statement of the contract of `ContainerRuntime`.
#[derive(Clone, Copy)]
pub struct Case {
    /// What it states.
    pub name: &'static str,
    /// What it needs.
    pub needs: Needs,
    body: fn(Subject) -> BoxFuture<'static, ()>,
}

/// What a case needs of its subject.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Needs {
    /// The port.
    Port,
    /// That somebody else can take sandboxes away.
    Outside,
    /// That programs run.
    Programs,
    /// That programs run and memory, CPU and pids are bounded.
    Limits,
}

/// What is held against the contract.
#[derive(Clone)]
pub struct Subject {
    /// The adapter.
    pub runtime: Arc<dyn ContainerRuntime>,
    /// Who speaks to the agent of its sandboxes.
    pub guest: Arc<dyn Guest>,
    /// Who takes sandboxes away, where somebody can.
    pub outside: Option<Arc<dyn Outside>>,
    /// Whether programs run in its sandboxes.
    pub runs_programs: bool,
}

/// Somebody with power over the sandboxes who knows nothing of the adapter.
#[async_trait]
pub trait Outside: Send + Sync {
    /// Kills the sandbox, and removes what there is to remove.
    async fn take_away(&self, id: &SandboxId);
}

impl Case {
    /// Why it says nothing of this subject; nothing when it does.
    pub async fn skipped(&self, subject: &Subject) -> Option<String> {
        match self.needs {
            Needs::Port => None,
            Needs::Outside if subject.outside.is_some() => None,
            Needs::Outside => Some("nobody else can take its sandboxes away".to_owned()),
            Needs::Programs | Needs::Limits if !subject.runs_programs => {
                Some("it runs no programs".to_owned())
            }
            Needs::Programs => None,
            Needs::Limits => match subject.runtime.info().await {
                Ok(info) if info.weak.is_empty() => None,
                Ok(info) => Some(info.weak.join("; ")),
                Err(error) => panic!("{}", error.chain()),
            },
        }
    }

    /// Holds a subject against it.
    ///
    /// # Panics
    ///
    /// Where the contract is broken.
    pub async fn run(&self, subject: Subject) {
        (self.body)(subject).await;
    }
}

/// Every case; the names are unique.
pub fn cases() -> Vec<Case> {
    [
        life::CASES,
        streams::CASES,
        programs::CASES,
        limits::CASES,
        barriers::CASES,
    ]
    .concat()
}

/// A table of cases of functions.
macro_rules! contract {
    ($($name:ident: $needs:ident,)*) => {
        pub(super) const CASES: &[$crate::contract::Case] = &[$($crate::contract::Case {
            name: stringify!($name),
            needs: $crate::contract::Needs::$needs,
            body: |subject| Box::pin($name(subject)),
        }),*];
    };
}
use contract;

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::testing::{FakeGuest, FakeImages, FakeRuntime, Journal};

    struct Vanisher(Arc<FakeRuntime>);

    #[async_trait]
    impl Outside for Vanisher {
        async fn take_away(&self, _id: &SandboxId) {
            self.0.vanish_all();
        }
    }

    #[tokio::test]
    async fn the_fake_keeps_the_contract() {
        let names: BTreeSet<&str> = cases().iter().map(|case| case.name).collect();
        assert_eq!(names.len(), cases().len());
        for case in cases() {
            let runtime = Arc::new(FakeRuntime::new(&Journal::default()));
            let subject = Subject {
                guest: Arc::new(FakeGuest::new(&Journal::default(), Vec::new())),
                outside: Some(Arc::new(Vanisher(Arc::clone(&runtime)))),
                runs_programs: false,
                runtime: runtime.clone(),
            };
            if case.skipped(&subject).await.is_none() {
                case.run(subject).await;
                assert_eq!(runtime.existing(), Vec::<String>::new(), "{}", case.name);
            }
        }
    }

    #[tokio::test]
    async fn the_fake_of_a_store_keeps_its_contract() {
        for case in store_cases() {
            let directory =
                std::env::temp_dir().join(format!("forge-{}-{}", case.name, std::process::id()));
            std::fs::create_dir(&directory).unwrap();
            let images = FakeImages::default();
            let kept = images.clone();
            let subject = StoreSubject {
                store: Arc::new(images.clone()),
                other: Arc::new(images),
                directory: directory.clone(),
                archive: |path, contents| {
                    std::fs::write(path, [b"image:", contents].concat()).unwrap();
                },
                hostile: |path| std::fs::write(path, "image:../").unwrap(),
                kept: Arc::new(move || kept.kept()),
            };
            case.run(subject).await;
            std::fs::remove_dir_all(directory).unwrap();
        }
    }
}
