//! `auto`: the first runtime that works here, in a documented order.

use std::sync::Arc;

use async_trait::async_trait;
use mcp_forge_ports::driven::{ByteStream, ContainerRuntime};
use mcp_forge_ports::vocabulary::{
    EffectiveLimits, RuntimeInfo, SandboxExit, SandboxId, SandboxSpec, SandboxUsage,
};
use mcp_forge_ports::{PortError, PortErrorKind};
use tokio::sync::OnceCell;

/// A runtime that may be taken.
#[async_trait]
pub(crate) trait Candidate: Send + Sync {
    /// Its name.
    fn kind(&self) -> &'static str;

    /// Starts it.
    async fn warm_up(&self) -> Result<(), PortError>;

    /// Itself.
    fn port(&self) -> Arc<dyn ContainerRuntime>;
}

/// Which was taken, and why not those before it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Choice {
    pub(crate) index: usize,
    pub(crate) passed: Vec<String>,
}

/// Takes one at the first use and stays with it.
pub(crate) struct Automatic<C> {
    /// In their order; of some, why they cannot be made.
    candidates: Vec<Result<C, String>>,
    /// Whether limits that nothing enforces are as good as others.
    accepts_weak: bool,
    choice: OnceCell<Choice>,
}

impl<C: Candidate> Automatic<C> {
    pub(crate) fn new(candidates: Vec<Result<C, String>>, accepts_weak: bool) -> Self {
        Self {
            candidates,
            accepts_weak,
            choice: OnceCell::new(),
        }
    }

    pub(crate) fn candidates(&self) -> impl Iterator<Item = &C> {
        self.candidates.iter().flatten()
    }

    /// The one that is taken.
    ///
    /// # Errors
    ///
    /// Why each cannot be. It is tried again the next time.
    pub(crate) async fn chosen(&self) -> Result<(&C, &Choice), PortError> {
        let choice = self.choice.get_or_try_init(|| self.choose()).await?;
        match &self.candidates[choice.index] {
            Ok(chosen) => Ok((chosen, choice)),
            Err(why) => Err(PortError::new(PortErrorKind::Internal, why.as_str())),
        }
    }

    /// The first that enforces every limit, else the first that works.
    async fn choose(&self) -> Result<Choice, PortError> {
        let mut passed = Vec::new();
        let mut weak = None;
        let mut kinds = Vec::new();
        for (index, candidate) in self.candidates.iter().enumerate() {
            let candidate = match candidate {
                Ok(candidate) => candidate,
                Err(why) => {
                    passed.push(why.clone());
                    continue;
                }
            };
            let kind = candidate.kind();
            let works = match candidate.warm_up().await {
                Ok(()) => candidate.port().info().await,
                Err(error) => Err(error),
            };
            match works {
                Ok(info) if self.accepts_weak || info.weak.is_empty() => {
                    return Ok(Choice { index, passed });
                }
                Ok(info) => {
                    weak.get_or_insert(Choice {
                        index,
                        passed: passed.clone(),
                    });
                    passed.push(format!("{kind} is weak: {}", info.weak.join("; ")));
                }
                Err(error) => {
                    kinds.push(error.kind);
                    let hint = error.hint.as_deref().unwrap_or("see its log");
                    passed.push(format!("{kind}: {}; {hint}", error.chain()));
                }
            }
        }
        weak.ok_or_else(|| {
            // Of several, what the first one needs is the shortest way.
            let kind = kinds.first().copied().unwrap_or(PortErrorKind::Unsupported);
            PortError::new(
                kind,
                format!("no runtime works here: {}", passed.join(". ")),
            )
            .with_hint("one of them is enough; `mcp-forge doctor` tells what each needs")
        })
    }

    async fn port(&self) -> Result<Arc<dyn ContainerRuntime>, PortError> {
        let (candidate, _) = self.chosen().await?;
        Ok(candidate.port())
    }
}

#[async_trait]
impl<C: Candidate> ContainerRuntime for Automatic<C> {
    async fn info(&self) -> Result<RuntimeInfo, PortError> {
        self.port().await?.info().await
    }

    async fn create(&self, spec: &SandboxSpec) -> Result<EffectiveLimits, PortError> {
        self.port().await?.create(spec).await
    }

    async fn start(&self, id: &SandboxId) -> Result<Box<dyn ByteStream>, PortError> {
        self.port().await?.start(id).await
    }

    async fn wait(&self, id: &SandboxId) -> Result<SandboxExit, PortError> {
        self.port().await?.wait(id).await
    }

    async fn usage(&self, id: &SandboxId) -> Result<SandboxUsage, PortError> {
        self.port().await?.usage(id).await
    }

    async fn kill(&self, id: &SandboxId) -> Result<(), PortError> {
        self.port().await?.kill(id).await
    }

    async fn remove(&self, id: &SandboxId) -> Result<(), PortError> {
        self.port().await?.remove(id).await
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use mcp_forge_ports::testing::MockContainerRuntime;

    use super::*;

    /// What it says when it is started: nothing, a weakness, or why it does not start.
    struct Fake {
        kind: &'static str,
        says: Mutex<Result<Option<&'static str>, &'static str>>,
    }

    #[async_trait]
    impl Candidate for Fake {
        fn kind(&self) -> &'static str {
            self.kind
        }

        async fn warm_up(&self) -> Result<(), PortError> {
            self.says
                .lock()
                .unwrap()
                .map(drop)
                .map_err(|why| PortError::new(PortErrorKind::Denied, why).with_hint("mend it"))
        }

        fn port(&self) -> Arc<dyn ContainerRuntime> {
            let weak = self.says.lock().unwrap().unwrap();
            let info = RuntimeInfo {
                kind: self.kind.to_owned(),
                version: "1".to_owned(),
                weak: weak.map(str::to_owned).into_iter().collect(),
                host_namespaces: Default::default(),
            };
            let mut port = MockContainerRuntime::new();
            port.expect_info().returning(move || Ok(info.clone()));
            Arc::new(port)
        }
    }

    type Says = Result<Option<&'static str>, &'static str>;

    fn three(says: [Says; 3], accepts_weak: bool) -> Automatic<Fake> {
        let fakes = ["a", "b", "c"].into_iter().zip(says);
        let fakes = fakes.map(|(kind, says)| {
            Ok(Fake {
                kind,
                says: Mutex::new(says),
            })
        });
        Automatic::new(fakes.collect(), accepts_weak)
    }

    async fn chosen(
        says: [Says; 3],
        accepts_weak: bool,
    ) -> Result<(&'static str, Vec<String>), String> {
        let automatic = three(says, accepts_weak);
        let chosen = automatic.chosen().await;
        chosen
            .map(|(candidate, choice)| (candidate.kind, choice.passed.clone()))
            .map_err(|error| error.chain())
    }

    #[tokio::test]
    async fn the_first_that_works_is_taken() {
        let all = [Ok(None); 3];
        assert_eq!(chosen(all, false).await.unwrap(), ("a", vec![]));
        let (kind, passed) = chosen([Err("no"), Ok(None), Ok(None)], false)
            .await
            .unwrap();
        assert_eq!((kind, passed), ("b", vec!["a: no; mend it".to_owned()]));
        let told = chosen([Err("no"), Err("nor this"), Err("x")], false).await;
        assert_eq!(
            told.unwrap_err(),
            "no runtime works here: a: no; mend it. b: nor this; mend it. c: x; mend it"
        );
    }

    #[tokio::test]
    async fn one_that_enforces_comes_before_one_that_does_not() {
        let says = [Ok(Some("memory: no")), Err("no"), Ok(None)];
        let (kind, passed) = chosen(says, false).await.unwrap();
        assert_eq!(kind, "c");
        assert_eq!(passed, ["a is weak: memory: no", "b: no; mend it"]);
        assert_eq!(chosen(says, true).await.unwrap(), ("a", vec![]));
        let weak = [Err("no"), Ok(Some("x")), Ok(Some("y"))];
        let (kind, passed) = chosen(weak, false).await.unwrap();
        assert_eq!((kind, passed), ("b", vec!["a: no; mend it".to_owned()]));
    }

    #[tokio::test]
    async fn a_choice_stays_and_a_failure_does_not() {
        let automatic = three([Err("no"), Err("no"), Err("no")], false);
        assert!(automatic.info().await.is_err());
        let mend = |n| *automatic.candidates().nth(n).unwrap().says.lock().unwrap() = Ok(None);
        mend(1);
        assert_eq!(automatic.info().await.unwrap().kind, "b");
        mend(0);
        assert_eq!(automatic.info().await.unwrap().kind, "b");
    }

    #[tokio::test]
    async fn one_that_cannot_be_made_is_passed() {
        let mut automatic = three([Err("no"), Ok(None), Ok(None)], false);
        automatic.candidates[1] = Err("b: nowhere".to_owned());
        let (chosen, choice) = automatic.chosen().await.unwrap();
        assert_eq!(chosen.kind, "c");
        assert_eq!(choice.passed, ["a: no; mend it", "b: nowhere"]);
    }
}
