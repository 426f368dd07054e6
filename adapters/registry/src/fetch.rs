//! An image, from its reference to an OCI layout.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use backon::{ExponentialBuilder, Retryable};
use futures::{StreamExt, TryStreamExt};
use mcp_forge_ports::driven::{ImageProgress, ImageRegistry};
use mcp_forge_ports::{PortError, PortErrorKind};
use oci_spec::distribution::Reference;
use oci_spec::image::{Arch, Descriptor, ImageIndex, ImageManifest, Os};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tokio::fs::{self, File};
use tokio::io::AsyncWriteExt;

use crate::client::{Client, MAX_DOCUMENT, bounded};
use crate::error::{Fault, shown};

/// Manifests and indexes of OCI and of Docker.
const MANIFESTS: &str = "application/vnd.oci.image.manifest.v1+json, \
    application/vnd.oci.image.index.v1+json, \
    application/vnd.docker.distribution.manifest.v2+json, \
    application/vnd.docker.distribution.manifest.list.v2+json";

/// Most layers; engines have fewer.
const MAX_LAYERS: usize = 512;

/// Layers that are fetched at once, as engines do.
const AT_ONCE: usize = 3;

/// Attempts after the first one.
const AGAIN: usize = 3;

/// Registries, wherever they are.
#[derive(Debug, Clone)]
pub struct Registry {
    max_bytes: u64,
    pause: Duration,
}

impl Registry {
    /// Images of at most `max_bytes`, as they are sent.
    pub fn new(max_bytes: u64) -> Self {
        Self {
            max_bytes,
            pause: Duration::from_secs(1),
        }
    }

    /// The same, in a hurry.
    #[cfg(test)]
    pub(crate) fn impatient(max_bytes: u64) -> Self {
        Self {
            max_bytes,
            pause: Duration::from_millis(1),
        }
    }

    fn retries(&self) -> ExponentialBuilder {
        ExponentialBuilder::default()
            .with_min_delay(self.pause)
            .with_max_times(AGAIN)
            .with_jitter()
    }

    async fn fetch_into(
        &self,
        reference: &Reference,
        directory: &Path,
        known: &[String],
        progress: &ImageProgress,
    ) -> Result<(), Fault> {
        let client = Client::new(reference.resolve_registry(), reference.repository())?;
        let blobs = directory.join("blobs").join("sha256");
        let made = fs::create_dir_all(&blobs).await;
        made.map_err(Fault::write(&blobs))?;
        let pull = Pull {
            client,
            blobs,
            retries: self.retries(),
            progress: ImageProgress::clone(progress),
            done: AtomicU64::new(0),
        };
        let (kind, digest, bytes) = pull.manifest(reference).await?;
        let wrong = |error: serde_json::Error| Fault::Wrong(format!("its manifest: {error}"));
        let manifest: ImageManifest = serde_json::from_slice(&bytes).map_err(wrong)?;
        pull.write(&digest, &bytes).await?;
        let sizes = std::iter::once(manifest.config()).chain(manifest.layers());
        let total = sizes.map(Descriptor::size).fold(0, u64::saturating_add);
        if total > self.max_bytes || manifest.layers().len() > MAX_LAYERS {
            return Err(Fault::Wrong(format!(
                "it has {} layers of {total} bytes together; {MAX_LAYERS} layers and {} bytes (`images.max_size`) are the most",
                manifest.layers().len(),
                self.max_bytes
            )));
        }
        let is_known = known.contains(&hex_of(manifest.config())?.to_owned());
        let layers: &[Descriptor] = if is_known { &[] } else { manifest.layers() };
        let mut all = vec![manifest.config().clone()];
        all.extend_from_slice(layers);
        let total = all.iter().map(Descriptor::size).sum();
        let pull = &pull;
        let fetches = all
            .into_iter()
            .map(|one| async move { pull.blob(&one, total).await });
        futures::stream::iter(fetches)
            .buffer_unordered(AT_ONCE)
            .try_collect::<()>()
            .await?;
        let index = json!({
            "schemaVersion": 2,
            "manifests": [{
                "mediaType": kind,
                "digest": format!("sha256:{digest}"),
                "size": bytes.len(),
            }],
        });
        for (name, value) in [
            ("index.json", index),
            ("oci-layout", json!({"imageLayoutVersion": "1.0.0"})),
        ] {
            let path = directory.join(name);
            let written = fs::write(&path, value.to_string()).await;
            written.map_err(Fault::write(&path))?;
        }
        Ok(())
    }
}

/// An image on its way.
struct Pull {
    client: Client,
    blobs: PathBuf,
    retries: ExponentialBuilder,
    progress: ImageProgress,
    done: AtomicU64,
}

impl Pull {
    /// The manifest for this host: its media type, digest and bytes.
    async fn manifest(&self, reference: &Reference) -> Result<(String, String, Vec<u8>), Fault> {
        let pinned = reference.digest().map(hex_in).transpose()?;
        let named = match pinned {
            Some(_) => reference.digest(),
            None => reference.tag(),
        };
        let (digest, bytes) = self.document(named.unwrap_or("latest"), pinned).await?;
        let wrong = |error: serde_json::Error| Fault::Wrong(format!("its manifest: {error}"));
        let value: Value = serde_json::from_slice(&bytes).map_err(wrong)?;
        if value.get("manifests").is_none() {
            return Ok((media_type(&value), digest, bytes));
        }
        let index: ImageIndex = serde_json::from_slice(&bytes).map_err(wrong)?;
        let chosen = hex_of(chosen(index.manifests())?)?;
        let named = format!("sha256:{chosen}");
        let (digest, bytes) = self.document(&named, Some(chosen)).await?;
        let value: Value = serde_json::from_slice(&bytes).map_err(wrong)?;
        if value.get("manifests").is_some() {
            return Err(Fault::Wrong("its index leads to another index".to_owned()));
        }
        Ok((media_type(&value), digest, bytes))
    }

    /// A manifest or an index, and its digest.
    async fn document(
        &self,
        named: &str,
        digest: Option<&str>,
    ) -> Result<(String, Vec<u8>), Fault> {
        let get = || async {
            let path = format!("manifests/{named}");
            bounded(self.client.get(&path, MANIFESTS).await?, MAX_DOCUMENT).await
        };
        let bytes = get.retry(self.retries).when(Fault::is_transient).await?;
        let is = hex(&Sha256::digest(&bytes));
        match digest {
            Some(wanted) if wanted != is => Err(Fault::Wrong(format!(
                "its manifest has the digest sha256:{is}, and should have sha256:{wanted}"
            ))),
            _ => Ok((is, bytes)),
        }
    }

    async fn write(&self, digest: &str, bytes: &[u8]) -> Result<(), Fault> {
        let path = self.blobs.join(digest);
        let written = fs::write(&path, bytes).await;
        written.map_err(Fault::write(&path))
    }

    /// Fetches a layer or the configuration.
    async fn blob(&self, descriptor: &Descriptor, total: u64) -> Result<(), Fault> {
        let digest = hex_of(descriptor)?;
        let path = self.blobs.join(digest);
        let get = || async {
            let mut done = 0;
            let got = self.blob_once(descriptor, digest, &path, &mut done, total);
            let got = got.await;
            if got.is_err() {
                self.done.fetch_sub(done, Ordering::Relaxed);
            }
            got
        };
        get.retry(self.retries)
            .when(Fault::is_transient)
            .notify(|fault, _| tracing::warn!("{fault}; once more"))
            .await
    }

    async fn blob_once(
        &self,
        descriptor: &Descriptor,
        digest: &str,
        path: &Path,
        done: &mut u64,
        total: u64,
    ) -> Result<(), Fault> {
        let from = format!("blobs/sha256:{digest}");
        let mut answer = self.client.get(&from, "*/*").await?;
        let mut file = File::create(path).await.map_err(Fault::write(path))?;
        let mut hash = Sha256::new();
        while let Some(piece) = answer.chunk().await? {
            if *done + piece.len() as u64 > descriptor.size() {
                return Err(Fault::Wrong(format!(
                    "sha256:{digest} has more than {} bytes",
                    descriptor.size()
                )));
            }
            hash.update(&piece);
            let written = file.write_all(&piece).await;
            written.map_err(Fault::write(path))?;
            *done += piece.len() as u64;
            let came = piece.len() as u64;
            let all = self.done.fetch_add(came, Ordering::Relaxed) + came;
            (self.progress)(all, total);
        }
        file.flush().await.map_err(Fault::write(path))?;
        let is = hex(&hash.finalize());
        if is != digest {
            let what =
                format!("a blob has the digest sha256:{is}, and should have sha256:{digest}");
            return Err(Fault::Wrong(what));
        }
        Ok(())
    }
}

fn media_type(manifest: &Value) -> String {
    let named = manifest.get("mediaType").and_then(Value::as_str);
    named
        .unwrap_or("application/vnd.oci.image.manifest.v1+json")
        .to_owned()
}

/// The manifest of this host, or the only one.
fn chosen(all: &[Descriptor]) -> Result<&Descriptor, Fault> {
    if let [one] = all {
        return Ok(one);
    }
    let (os, architecture) = (Os::Linux, Arch::default());
    let fitting = all.iter().find(|descriptor| {
        let platform = descriptor.platform().as_ref();
        platform.is_some_and(|of| *of.os() == os && *of.architecture() == architecture)
    });
    fitting.ok_or_else(|| {
        let count = all.len();
        Fault::Wrong(format!(
            "it has {count} images, none of {os}/{architecture}"
        ))
    })
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The digits of a digest, which are the name of a file.
fn hex_in(digest: &str) -> Result<&str, Fault> {
    let digits = digest.strip_prefix("sha256:").filter(|digits| {
        let lower = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        digits.len() == 64 && digits.bytes().all(lower)
    });
    digits.ok_or_else(|| Fault::Wrong(format!("{} is no sha256", shown(digest))))
}

fn hex_of(descriptor: &Descriptor) -> Result<&str, Fault> {
    hex_in(descriptor.digest().as_ref())
}

#[async_trait]
impl ImageRegistry for Registry {
    async fn fetch(
        &self,
        reference: &str,
        directory: &Path,
        known: &[String],
        progress: ImageProgress,
    ) -> Result<(), PortError> {
        let parsed: Reference = reference.parse().map_err(|error| {
            let what = format!("cannot pull {}", shown(reference));
            PortError::new(PortErrorKind::Unsupported, what).with_source(error)
        })?;
        // Whoever gives up ends it: it is one future.
        let progress = Arc::clone(&progress);
        let fetched = self.fetch_into(&parsed, directory, known, &progress).await;
        fetched.map_err(|fault| fault.port(reference, parsed.resolve_registry()))
    }
}
