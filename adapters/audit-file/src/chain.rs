//! What ties the entries together, so that a change, a removal and a reordering can be found.
//!
//! Each entry has a sequence number from 1 and the SHA-256 of the line before it (without its line
//! break). The *head*, a small file beside the log, holds number and hash of the last entry: a log
//! that was cut at its end ends before its head. Whoever can write both can forge both; keep the
//! head elsewhere (`audit verify --expect`) against those.

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::error::FileAuditError;

/// Most bytes that [`seal`] adds to an entry.
pub(crate) const SEAL_ROOM: usize = 256;

/// Size of the head, bytes: always the same, so that one write replaces it.
pub(crate) const HEAD_BYTES: usize = 256;

/// SHA-256 in hexadecimal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Hash(String);

impl Hash {
    /// That of these bytes.
    pub(crate) fn of(bytes: &[u8]) -> Self {
        Self::from(Sha256::new_with_prefix(bytes))
    }

    /// What the first entry has in the place of the hash of the one before it.
    pub(crate) fn zero() -> Self {
        Self("0".repeat(64))
    }

    /// The hexadecimal digits.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<Sha256> for Hash {
    fn from(state: Sha256) -> Self {
        let digest = state.finalize();
        Self(digest.iter().map(|byte| format!("{byte:02x}")).collect())
    }
}

/// The members of an entry that tie it to the one before.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Link {
    /// From 1, without a gap.
    pub(crate) seq: u64,
    /// Of the entry before.
    pub(crate) previous: Hash,
    /// Of what a writer left that was ended while it wrote: the line between this and `previous`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) torn: Option<Hash>,
}

impl Link {
    /// That of a line; nothing when it is no entry.
    pub(crate) fn of(line: &[u8]) -> Option<Self> {
        serde_json::from_slice(line).ok()
    }
}

/// The line of an entry in its place in the chain. `entry` is a JSON object and a line break.
pub(crate) fn seal(mut entry: Vec<u8>, link: &Link) -> Result<Vec<u8>, FileAuditError> {
    let members = serde_json::to_vec(link).map_err(|source| FileAuditError::Encode { source })?;
    entry.truncate(entry.len().saturating_sub(2));
    entry.push(b',');
    entry.extend_from_slice(&members[1..]);
    entry.push(b'\n');
    Ok(entry)
}

/// Where the chain ends.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Head {
    /// Number of the oldest entry that is kept.
    pub(crate) first: u64,
    /// Number of the last entry, 0 before the first.
    pub(crate) seq: u64,
    /// Its hash.
    pub(crate) hash: Hash,
    /// Size of the file after it, bytes.
    pub(crate) size: u64,
}

impl Head {
    pub(crate) fn new() -> Self {
        Self {
            first: 1,
            seq: 0,
            hash: Hash::zero(),
            size: 0,
        }
    }

    /// The head in the content of its file.
    pub(crate) fn parse(content: &[u8]) -> Option<Self> {
        serde_json::from_slice(content).ok()
    }

    /// The content of its file.
    pub(crate) fn encode(&self) -> Result<[u8; HEAD_BYTES], FileAuditError> {
        let text = serde_json::to_vec(self).map_err(|source| FileAuditError::Encode { source })?;
        let mut content = [b' '; HEAD_BYTES];
        content[..text.len()].copy_from_slice(&text);
        content[HEAD_BYTES - 1] = b'\n';
        Ok(content)
    }

    /// Whether an entry is the next one.
    pub(crate) fn goes_on_with(&self, link: &Link) -> bool {
        self.seq.checked_add(1) == Some(link.seq) && self.hash == link.previous
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sealed_entry_is_one_object() {
        let link = Link {
            seq: u64::MAX,
            previous: Hash::of(b"x"),
            torn: Some(Hash::zero()),
        };
        let line = seal(b"{\"a\":1}\n".to_vec(), &link).unwrap();
        assert!(line.len() - 8 <= SEAL_ROOM);
        assert!(line.starts_with(b"{\"a\":1,\"seq\":18446744073709551615,\"previous\":\"2d711642"));
        assert!(line.ends_with(b"0\"}\n"));
        assert_eq!(Link::of(&line), Some(link));
    }

    #[test]
    fn the_longest_head_has_room() {
        let head = Head {
            first: u64::MAX,
            seq: u64::MAX,
            hash: Hash::zero(),
            size: u64::MAX,
        };
        let content = head.encode().unwrap();
        assert_eq!(Head::parse(&content), Some(head));
        for broken in [&content[..HEAD_BYTES / 2], b"", b"null", b"{\"seq\":-1}"] {
            assert_eq!(Head::parse(broken), None);
        }
    }
}
