//! Images in memory.

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use async_trait::async_trait;

use crate::driven::{ImageProgress, ImageStore};
use crate::vocabulary::{Image, ImportedImage};
use crate::{PortError, PortErrorKind};

/// Keeps the bytes of files as images. A file must begin with `image:`, and one that begins with `image:..` is hostile.
#[derive(Default, Clone)]
pub struct FakeImages(Arc<Mutex<Vec<Kept>>>);

struct Kept {
    image: Image,
    holds: Arc<()>,
}

impl FakeImages {
    /// How many there are.
    pub fn kept(&self) -> usize {
        self.all().len()
    }

    fn all(&self) -> MutexGuard<'_, Vec<Kept>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// 64 digits that differ where the bytes do: enough for a fake.
fn digest(bytes: &[u8]) -> String {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    let mut digits = String::new();
    for round in 0..4_u8 {
        for byte in bytes.iter().chain([&round]) {
            hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
        digits.push_str(&format!("{hash:016x}"));
    }
    digits
}

fn position(all: &[Kept], image: &str) -> Option<usize> {
    let named = all
        .iter()
        .position(|kept| kept.image.names.iter().any(|name| name == image));
    if named.is_some() {
        return named;
    }
    if let Some((repository, id)) = image.split_once("@sha256:") {
        let of = |name: &String| name.starts_with(&format!("{repository}:"));
        return all
            .iter()
            .position(|kept| kept.image.id == id && kept.image.names.iter().any(of));
    }
    let digits = image.strip_prefix("sha256:").unwrap_or(image);
    let begun = |kept: &Kept| digits.len() >= 12 && kept.image.id.starts_with(digits);
    match all.iter().filter(|kept| begun(kept)).count() {
        1 => all.iter().position(begun),
        _ => None,
    }
}

fn error(kind: PortErrorKind, what: &str) -> PortError {
    PortError::new(kind, what.escape_debug().to_string()).with_hint("see `mcp-forge images list`")
}

#[async_trait]
impl ImageStore for FakeImages {
    async fn list(&self) -> Result<Vec<Image>, PortError> {
        Ok(self.all().iter().map(|kept| kept.image.clone()).collect())
    }

    async fn find(&self, image: &str) -> Result<Image, PortError> {
        let all = self.all();
        let at = position(&all, image);
        at.map(|at| all[at].image.clone())
            .ok_or_else(|| error(PortErrorKind::NotFound, &format!("no image {image}")))
    }

    async fn import(
        &self,
        source: &Path,
        progress: ImageProgress,
    ) -> Result<ImportedImage, PortError> {
        let bytes = std::fs::read(source).unwrap_or_default();
        let Some(contents) = bytes.strip_prefix(b"image:") else {
            return Err(error(PortErrorKind::Unsupported, "it is no image"));
        };
        if contents.starts_with(b"..") {
            return Err(error(PortErrorKind::Denied, "it is hostile"));
        }
        progress(0, bytes.len() as u64);
        let id = digest(contents);
        let mut all = self.all();
        if !all.iter().any(|kept| kept.image.id == id) {
            all.push(Kept {
                image: Image {
                    id: id.clone(),
                    names: Vec::new(),
                    bytes: contents.len() as u64,
                    imported: SystemTime::now(),
                },
                holds: Arc::default(),
            });
        }
        progress(bytes.len() as u64, bytes.len() as u64);
        let image = position(&all, &id).map(|at| all[at].image.clone());
        let image = image.ok_or_else(|| error(PortErrorKind::Internal, "it is lost"))?;
        Ok(ImportedImage {
            image,
            name: None,
            skipped: 0,
        })
    }

    async fn tag(&self, id: &str, name: &str) -> Result<Image, PortError> {
        let mut all = self.all();
        let at = all.iter().position(|kept| kept.image.id == id);
        let at = at.ok_or_else(|| error(PortErrorKind::Unsupported, "there is no such image"))?;
        for kept in all.iter_mut() {
            kept.image.names.retain(|one| one != name);
        }
        all[at].image.names.push(name.to_owned());
        Ok(all[at].image.clone())
    }

    async fn remove(&self, image: &str) -> Result<(), PortError> {
        let mut all = self.all();
        let Some(at) = position(&all, image) else {
            return Ok(());
        };
        let kept = &mut all[at];
        if kept.image.names.len() > 1 && kept.image.names.iter().any(|name| name == image) {
            kept.image.names.retain(|name| name != image);
        } else if Arc::strong_count(&kept.holds) > 1 {
            return Err(error(PortErrorKind::AlreadyExists, "it is in use"));
        } else {
            all.remove(at);
        }
        Ok(())
    }

    async fn hold(&self, id: &str) -> Result<Arc<dyn Send + Sync>, PortError> {
        let all = self.all();
        let kept = all.iter().find(|kept| kept.image.id == id);
        let kept = kept.ok_or_else(|| error(PortErrorKind::NotFound, "there is no such image"))?;
        Ok(Arc::clone(&kept.holds) as _)
    }
}
