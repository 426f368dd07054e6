//! Layers of an image, unpacked into a tree: OCI image-spec `layer.md`, and the tar formats that it names
//! (POSIX ustar and pax, GNU). Archives are hostile: what is read of headers and names is bounded before it is kept, and so is
//! everything together.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::io::{self, Read, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use tar::{Archive, EntryType, PaxExtensions};

use crate::source::copy;
use crate::tree::{Tree, place};
use crate::{Failure, Refused};

/// Longest name that is told ahead of an entry, bytes.
const MAX_NAME: u64 = 4096;

/// Longest set of pax records, bytes.
const MAX_PAX: u64 = 1 << 20;

/// What takes a file of a lower layer away, and what takes a directory's contents away.
const WHITEOUT: &[u8] = b".wh.";
const OPAQUE: &[u8] = b".wh..wh..opq";

/// What an image may have, all its layers together; what is left of it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Room {
    pub(crate) bytes: u64,
    pub(crate) entries: u64,
}

/// What was told of the next entry ahead of it.
#[derive(Default)]
struct Ahead {
    path: Option<PathBuf>,
    link: Option<PathBuf>,
    size: Option<u64>,
}

/// Unpacks a layer and gives the number of devices and pipes that were left out; `lower` tells that there may be layers below, of which it can take something away.
pub(crate) fn layer(
    tree: &Tree,
    reader: impl Read,
    room: &mut Room,
    lower: bool,
) -> Result<u64, Failure> {
    let mut archive = Archive::new(reader);
    let mut ahead = Ahead::default();
    let mut own = HashSet::new();
    let mut skipped = 0;
    // Raw, since the library would read names of any length.
    for entry in archive.entries().map_err(Failure::Read)?.raw(true) {
        let mut entry = entry.map_err(Failure::Read)?;
        let kind = entry.header().entry_type();
        let size = entry.header().size().map_err(Failure::Read)?;
        match kind {
            EntryType::GNULongName => {
                ahead.path = Some(name(&mut entry, size)?);
                continue;
            }
            EntryType::GNULongLink => {
                ahead.link = Some(name(&mut entry, size)?);
                continue;
            }
            EntryType::XHeader => {
                pax(&mut entry, size, &mut ahead)?;
                continue;
            }
            // Of all entries that follow: comments of archivers, such as a commit.
            EntryType::XGlobalHeader => continue,
            _ => {}
        }
        let told = std::mem::take(&mut ahead);
        let path = match told.path {
            Some(path) => path,
            None => entry.header().path().map_err(Failure::Read)?.into_owned(),
        };
        room.entries = room
            .entries
            .checked_sub(1)
            .ok_or_else(|| Refused::new(&path, "there are too many files"))?;
        // It would end elsewhere than its header says.
        if told.size.is_some_and(|told| told != size) {
            return Err(Refused::new(&path, "files above 8 GiB are not taken").into());
        }
        let Some((above, name)) = place(&path)? else {
            continue;
        };
        let link = || -> Result<PathBuf, Failure> {
            let link = match &told.link {
                Some(link) => link.clone(),
                None => {
                    let link = entry.header().link_name().map_err(Failure::Read)?;
                    link.map(|link| link.into_owned()).unwrap_or_default()
                }
            };
            match link.as_os_str().is_empty() {
                true => Err(Refused::new(&path, "its link is empty").into()),
                false => Ok(link),
            }
        };
        let wrong = |error: io::Error| Failure::entry(&path, error);
        if lower && name.as_bytes() == OPAQUE {
            for name in tree.names(&above).map_err(wrong)? {
                if !own.contains(&above.join(&name)) {
                    tree.take_away(&above, &name).map_err(wrong)?;
                }
            }
            continue;
        }
        if lower && let Some(gone) = name.as_bytes().strip_prefix(WHITEOUT) {
            let gone = OsStr::from_bytes(gone);
            if place(Path::new(gone))?.is_none_or(|(above, _)| !above.as_os_str().is_empty()) {
                return Err(Refused::new(&path, "it takes nothing away that has a name").into());
            }
            if !own.contains(&above.join(gone)) {
                tree.take_away(&above, gone).map_err(wrong)?;
            }
            continue;
        }
        match kind {
            EntryType::Directory => tree.make_directory(&above, &name).map_err(wrong)?,
            EntryType::Regular | EntryType::Continuous => {
                room.bytes = room
                    .bytes
                    .checked_sub(size)
                    .ok_or_else(|| Refused::new(&path, "the image is too large"))?;
                let program = entry.header().mode().map_err(Failure::Read)? & 0o111 != 0;
                let mut file = tree.file(&above, &name, program).map_err(wrong)?;
                if copy(&mut entry, &mut file, wrong)? != size {
                    return Err(Failure::Read(io::ErrorKind::UnexpectedEof.into()));
                }
                file.flush().map_err(wrong)?;
            }
            EntryType::Symlink => {
                let target = link()?;
                tree.symbolic_link(&above, &name, &target).map_err(wrong)?;
            }
            EntryType::Link => {
                let target = link()?;
                let Some((of, file)) = place(&target)? else {
                    return Err(Refused::new(&path, "it is a hard link to the root").into());
                };
                tree.hard_link(&above, &name, (&of, &file)).map_err(wrong)?;
            }
            EntryType::Char | EntryType::Block | EntryType::Fifo => {
                skipped += 1;
                continue;
            }
            other => {
                let what = format!(
                    "entries of kind {:?} are not taken",
                    char::from(other.as_byte())
                );
                return Err(Refused::new(&path, &what).into());
            }
        }
        if lower {
            own.insert(above.join(&name));
        }
    }
    Ok(skipped)
}

fn bytes(entry: &mut impl Read, size: u64, most: u64) -> Result<Vec<u8>, Failure> {
    if size > most {
        return Err(Refused::new(Path::new("a header"), "its name is too long").into());
    }
    let mut bytes = Vec::new();
    entry
        .take(most)
        .read_to_end(&mut bytes)
        .map_err(Failure::Read)?;
    Ok(bytes)
}

fn name(entry: &mut impl Read, size: u64) -> Result<PathBuf, Failure> {
    let mut bytes = bytes(entry, size, MAX_NAME)?;
    if bytes.last() == Some(&0) {
        bytes.pop();
    }
    Ok(path_of(bytes))
}

fn path_of(bytes: Vec<u8>) -> PathBuf {
    std::ffi::OsString::from_vec(bytes).into()
}

fn pax(entry: &mut impl Read, size: u64, ahead: &mut Ahead) -> Result<(), Failure> {
    let bytes = bytes(entry, size, MAX_PAX)?;
    for record in PaxExtensions::new(&bytes) {
        let record = record.map_err(Failure::Read)?;
        let value = record.value_bytes().to_vec();
        match record.key_bytes() {
            b"path" => ahead.path = Some(path_of(value)),
            b"linkpath" => ahead.link = Some(path_of(value)),
            b"size" => {
                let size = std::str::from_utf8(&value)
                    .ok()
                    .and_then(|text| text.parse().ok());
                ahead.size = Some(size.unwrap_or(u64::MAX));
            }
            key if key.starts_with(b"GNU.sparse.") => {
                let what = "sparse files are not taken";
                return Err(Refused::new(Path::new("a header"), what).into());
            }
            _ => {}
        }
    }
    Ok(())
}
