//! The `BlobStore` port: small blobs in memory, large ones in files without a name. The kernel
//! removes those with the process, however it ends (`O_TMPFILE`, open(2)).

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use mcp_forge_ports::driven::{Blob, BlobStore};
use mcp_forge_ports::{PortError, PortErrorKind};
use tokio::sync::Mutex;
use tokio::task::spawn_blocking;

/// Bytes of one blob that stay in memory.
const IN_MEMORY: usize = 64 * 1024;

/// Keeps blobs below one directory.
#[derive(Debug, Clone)]
pub struct SpoolStore {
    directory: Arc<Path>,
}

impl SpoolStore {
    /// A store whose large blobs are in `directory`, which should be on a disk and not in memory.
    /// It is looked at only when a blob needs it.
    pub fn new(directory: impl Into<PathBuf>) -> Self {
        Self {
            directory: directory.into().into(),
        }
    }
}

impl BlobStore for SpoolStore {
    fn create(&self) -> Box<dyn Blob> {
        Box::new(Spool {
            directory: Arc::clone(&self.directory),
            place: Mutex::new(Place::Memory(Vec::new())),
        })
    }
}

struct Spool {
    directory: Arc<Path>,
    place: Mutex<Place>,
}

enum Place {
    Memory(Vec<u8>),
    Disk { file: Arc<File>, length: u64 },
}

#[async_trait]
impl Blob for Spool {
    async fn append(&self, bytes: Vec<u8>) -> Result<(), PortError> {
        let mut place = self.place.lock().await;
        let added = bytes.len() as u64;
        match &mut *place {
            Place::Memory(kept) if kept.len() + bytes.len() <= IN_MEMORY => {
                kept.extend_from_slice(&bytes);
            }
            Place::Memory(kept) => {
                let directory = Arc::clone(&self.directory);
                let whole = [kept.as_slice(), &bytes].concat();
                let length = whole.len() as u64;
                let file = blocking(move || {
                    let file = tempfile::tempfile_in(&directory)?;
                    file.write_all_at(&whole, 0)?;
                    Ok(file)
                });
                let file = Arc::new(file.await?);
                *place = Place::Disk { file, length };
            }
            Place::Disk { file, length } => {
                let (file, at) = (Arc::clone(file), *length);
                // A part of it that was written is written over by what comes next.
                blocking(move || file.write_all_at(&bytes, at)).await?;
                *length += added;
            }
        }
        Ok(())
    }

    async fn read(&self, offset: u64, length: usize) -> Result<Vec<u8>, PortError> {
        let (file, length) = match &*self.place.lock().await {
            Place::Memory(kept) => {
                let start = usize::try_from(offset).map_or(kept.len(), |at| at.min(kept.len()));
                let end = start.saturating_add(length).min(kept.len());
                return Ok(kept[start..end].to_vec());
            }
            Place::Disk { file, length: all } => {
                let there = usize::try_from(all.saturating_sub(offset)).unwrap_or(usize::MAX);
                (Arc::clone(file), length.min(there))
            }
        };
        blocking(move || {
            let mut bytes = vec![0; length];
            file.read_exact_at(&mut bytes, offset)?;
            Ok(bytes)
        })
        .await
    }
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> Result<T, PortError> {
    let done = spawn_blocking(work).await;
    done.unwrap_or_else(|error| Err(io::Error::other(error)))
        .map_err(|error| {
            PortError::new(PortErrorKind::Internal, "keep bytes of a run on disk")
                .with_source(error)
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn bytes_come_back_from_memory_and_from_disk() {
        let directory = tempfile::tempdir().unwrap();
        let blob = SpoolStore::new(directory.path()).create();
        let mut whole = Vec::new();
        for at in 0..20_u8 {
            let part = vec![at; 10_000];
            whole.extend_from_slice(&part);
            blob.append(part).await.unwrap();
            assert_eq!(blob.read(0, usize::MAX).await.unwrap(), whole);
        }
        assert_eq!(blob.read(9_999, 2).await.unwrap(), [0, 1]);
        assert_eq!(blob.read(199_999, 9).await.unwrap(), [19]);
        assert_eq!(blob.read(200_000, 9).await.unwrap(), [0; 0]);
        assert_eq!(blob.read(u64::MAX, 9).await.unwrap(), [0; 0]);
        // Nothing that a crash could leave.
        assert_eq!(directory.path().read_dir().unwrap().count(), 0);
    }

    #[tokio::test]
    async fn what_cannot_be_kept_is_an_error_and_changes_nothing() {
        let blob = SpoolStore::new("/nonexistent").create();
        blob.append(b"small".to_vec()).await.unwrap();
        let refused = blob.append(vec![0; IN_MEMORY]).await.unwrap_err();
        assert_eq!(refused.kind, PortErrorKind::Internal);
        assert_eq!(blob.read(0, 100).await.unwrap(), b"small");
    }
}
