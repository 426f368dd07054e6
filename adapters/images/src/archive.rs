//! What an archive holds, and its layers.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use oci_spec::image::{
    Arch, Descriptor, Digest, ImageConfiguration, ImageIndex, ImageManifest, Os,
};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tar::{Archive, EntryType};

use crate::source::{Counted, Progress, copy, hex, is_hex, plain};
use crate::tree::place;
use crate::{Failure, Refused, shown};

/// Longest document of an image, bytes.
const MAX_DOCUMENT: u64 = 4 << 20;

/// Most layers; engines have fewer.
const MAX_LAYERS: usize = 512;

/// Most indexes that name each other.
const MAX_NESTED: usize = 4;

/// Longest list of files of an archive of an image.
const MAX_FILES: usize = 10_000;

/// The layers of an image, lowest first.
#[derive(Debug)]
pub(crate) struct Layers {
    /// Digest of the configuration, which names the layers by theirs: the image's id. Hexadecimal.
    pub(crate) id: String,
    pub(crate) layers: Vec<Layer>,
    /// What the archive calls it.
    pub(crate) name: Option<String>,
}

#[derive(Debug)]
pub(crate) struct Layer {
    pub(crate) path: PathBuf,
    /// Digest of the layer before it was compressed, hexadecimal.
    pub(crate) digest: String,
}

/// What a file is.
pub(crate) enum Form {
    /// A tar of a root file system.
    Tree,
    /// An archive of an image.
    Image,
}

/// Tells by the first entry that has a name.
pub(crate) fn form(path: &Path) -> Result<Form, Failure> {
    let mut left = MAX_DOCUMENT;
    let mut archive = Archive::new(Counted::new(plain(path, &Progress::silent())?, &mut left));
    for entry in archive.entries().map_err(Failure::Read)?.raw(true) {
        let entry = entry.map_err(Failure::Read)?;
        if !matches!(
            entry.header().entry_type(),
            EntryType::Regular | EntryType::Directory | EntryType::Symlink | EntryType::Link
        ) {
            continue;
        }
        let path = entry.header().path().map_err(Failure::Read)?;
        let Some(first) = path.components().find_map(|component| match component {
            std::path::Component::Normal(name) => name.to_str(),
            _ => None,
        }) else {
            continue;
        };
        let stem = first.split('.').next().unwrap_or_default();
        let documents = ["blobs", "index", "manifest", "oci-layout", "repositories"];
        return Ok(match documents.contains(&stem) || is_hex(stem) {
            true => Form::Image,
            false => Form::Tree,
        });
    }
    Err(Failure::Wrong("it has no entries".to_owned()))
}

/// Takes the files of an image's archive out into a directory: one level of names, whatever theirs were.
pub(crate) struct Files {
    directory: PathBuf,
    /// Of an archive, by their names there; links lead to other names. Of a directory it has them itself.
    files: Option<BTreeMap<String, Stored>>,
}

enum Stored {
    File(PathBuf),
    Link(String),
}

impl Files {
    /// Of an archive; `left` is how many bytes it may have.
    pub(crate) fn unpacked(
        path: &Path,
        directory: &Path,
        left: &mut u64,
        progress: &Progress,
    ) -> Result<Self, Failure> {
        let mut files = BTreeMap::new();
        let mut count = 0;
        let mut archive = Archive::new(Counted::new(plain(path, progress)?, left));
        for entry in archive.entries().map_err(Failure::Read)?.raw(true) {
            let mut entry = entry.map_err(Failure::Read)?;
            // Of no image is a name longer than a header has room for.
            let name = entry.header().path().map_err(Failure::Read)?.into_owned();
            let Some(name) = name
                .to_str()
                .map(|name| name.trim_start_matches("./").to_owned())
            else {
                continue;
            };
            count += 1;
            if count > MAX_FILES {
                return Err(Refused::new(Path::new(&name), "there are too many files").into());
            }
            match entry.header().entry_type() {
                EntryType::Regular => {
                    let to = directory.join(count.to_string());
                    let mut file = File::create_new(&to).map_err(Failure::at(&to))?;
                    copy(&mut entry, &mut file, Failure::at(&to))?;
                    files.insert(name, Stored::File(to));
                }
                kind @ (EntryType::Symlink | EntryType::Link) => {
                    let link = entry.header().link_name().map_err(Failure::Read)?;
                    let link = link.and_then(|link| Some(link.to_str()?.to_owned()));
                    let target = link.unwrap_or_default();
                    // A hard link tells a name in the archive.
                    let beside = match name.rsplit_once('/') {
                        Some((above, _)) if kind == EntryType::Symlink => above,
                        _ => "",
                    };
                    files.insert(name.clone(), Stored::Link(joined(beside, &target)));
                }
                _ => {}
            }
        }
        Ok(Self {
            directory: directory.to_owned(),
            files: Some(files),
        })
    }

    /// Of an OCI layout that is a directory.
    pub(crate) fn of_directory(directory: &Path) -> Self {
        Self {
            directory: directory.to_owned(),
            files: None,
        }
    }

    fn path(&self, name: &str) -> Result<PathBuf, Failure> {
        let missing = || Failure::Wrong(format!("{name:?} is not in it"));
        let Some(files) = &self.files else {
            let (above, name) = place(Path::new(name))?.ok_or_else(missing)?;
            return Ok(self.directory.join(above).join(name));
        };
        let mut stored = files.get(name).ok_or_else(missing)?;
        // A link leads to a file, as engines write them.
        if let Stored::Link(to) = stored {
            stored = files.get(to).ok_or_else(missing)?;
        }
        match stored {
            Stored::File(path) => Ok(path.clone()),
            Stored::Link(_) => Err(missing()),
        }
    }

    fn document(&self, name: &str) -> Result<Vec<u8>, Failure> {
        let path = self.path(name)?;
        let mut bytes = Vec::new();
        let file = match File::open(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(Failure::Wrong(format!("{name:?} is not in it")));
            }
            file => file.map_err(Failure::source(&path))?,
        };
        let length = file.take(MAX_DOCUMENT + 1).read_to_end(&mut bytes);
        if length.map_err(Failure::source(&path))? as u64 > MAX_DOCUMENT {
            return Err(Refused::new(Path::new(name), "it is too long for a document").into());
        }
        Ok(bytes)
    }

    /// A document by its digest, which is checked.
    fn blob<T: DeserializeOwned>(&self, descriptor: &Descriptor) -> Result<(String, T), Failure> {
        let (name, wanted) = blob(descriptor.digest())?;
        let bytes = self.document(&name)?;
        let is = sha256(&bytes);
        if is != wanted {
            return Err(Failure::Wrong(format!("{name} has the digest sha256:{is}")));
        }
        Ok((is, json(&name, &bytes)?))
    }

    /// The image: of an OCI layout, else of `docker save`.
    pub(crate) fn image(&self) -> Result<Layers, Failure> {
        match self.document("index.json") {
            Ok(bytes) => self.oci(json("index.json", &bytes)?),
            Err(Failure::Wrong(_)) => self.docker(),
            Err(other) => Err(other),
        }
    }

    fn oci(&self, mut index: ImageIndex) -> Result<Layers, Failure> {
        let mut name = None;
        for _ in 0..MAX_NESTED {
            let chosen = chosen(index.manifests())?.clone();
            let kind = chosen.media_type().to_string();
            let annotations = chosen.annotations().clone().unwrap_or_default();
            // Full where an engine wrote it, else the tag alone.
            let full = [
                "io.containerd.image.name",
                "org.opencontainers.image.ref.name",
            ];
            name = name.or_else(|| full.iter().find_map(|key| annotations.get(*key).cloned()));
            if kind.ends_with("index.v1+json") || kind.ends_with("manifest.list.v2+json") {
                index = self.blob(&chosen)?.1;
                continue;
            }
            let (_, manifest): (_, ImageManifest) = self.blob(&chosen)?;
            let (id, configuration): (_, ImageConfiguration) = self.blob(manifest.config())?;
            let blobs = manifest
                .layers()
                .iter()
                .map(|layer| Ok(blob(layer.digest())?.0));
            let blobs = blobs.collect::<Result<Vec<_>, Failure>>()?;
            return self.layers(id, &configuration, &blobs, name);
        }
        Err(Failure::Wrong("its indexes lead to no image".to_owned()))
    }

    fn docker(&self) -> Result<Layers, Failure> {
        #[derive(Deserialize)]
        #[serde(rename_all = "PascalCase")]
        struct Manifest {
            config: String,
            #[serde(default)]
            repo_tags: Option<Vec<String>>,
            layers: Vec<String>,
        }
        let bytes = self.document("manifest.json")?;
        let manifests: Vec<Manifest> = json("manifest.json", &bytes)?;
        let [manifest] = manifests.as_slice() else {
            let names = manifests
                .iter()
                .flat_map(|one| one.repo_tags.iter().flatten());
            let names: Vec<String> = names.take(4).map(|name| shown(name)).collect();
            let (count, names) = (manifests.len(), names.join(", "));
            let what = format!("it holds {count} images ({names}), save one alone");
            return Err(Failure::Wrong(what));
        };
        let bytes = self.document(&manifest.config)?;
        let configuration = json(&manifest.config, &bytes)?;
        let mut tags = manifest.repo_tags.iter().flatten();
        let name = tags.next().cloned();
        self.layers(sha256(&bytes), &configuration, &manifest.layers, name)
    }

    fn layers(
        &self,
        id: String,
        configuration: &ImageConfiguration,
        names: &[String],
        name: Option<String>,
    ) -> Result<Layers, Failure> {
        if *configuration.os() != Os::Linux || *configuration.architecture() != here() {
            let (os, architecture) = (configuration.os(), configuration.architecture());
            return Err(Failure::Wrong(format!(
                "it is of {os}/{architecture}, and this host of linux/{}",
                here()
            )));
        }
        let digests = configuration.rootfs().diff_ids();
        if digests.len() != names.len() || names.is_empty() || names.len() > MAX_LAYERS {
            let what = format!(
                "it has {} layers and {} digests of layers",
                names.len(),
                digests.len()
            );
            return Err(Failure::Wrong(what));
        }
        let layers = names.iter().zip(digests).map(|(name, digest)| {
            let digest = digest
                .strip_prefix("sha256:")
                .filter(|digest| is_hex(digest));
            let digest = digest
                .ok_or_else(|| Failure::Wrong(format!("the layer {name:?} has no sha256")))?;
            Ok(Layer {
                path: self.path(name)?,
                digest: digest.to_owned(),
            })
        });
        Ok(Layers {
            id,
            layers: layers.collect::<Result<_, Failure>>()?,
            name,
        })
    }
}

/// `target` as it is written in a link in the directory `beside`, without dots.
fn joined(beside: &str, target: &str) -> String {
    let mut parts: Vec<&str> = beside.split('/').filter(|part| !part.is_empty()).collect();
    for part in target.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop();
            }
            part => parts.push(part),
        }
    }
    parts.join("/")
}

fn here() -> Arch {
    Arch::default()
}

/// The manifest of this host, or the only one.
fn chosen(all: &[Descriptor]) -> Result<&Descriptor, Failure> {
    if let [one] = all {
        return Ok(one);
    }
    let mut fitting = all.iter().filter(|descriptor| {
        let platform = descriptor.platform().as_ref();
        platform.is_some_and(|of| *of.os() == Os::Linux && *of.architecture() == here())
    });
    match (fitting.next(), fitting.next()) {
        (Some(one), None) => Ok(one),
        (None, _) => Err(Failure::Wrong(format!(
            "it holds {} images, none of linux/{}",
            all.len(),
            here()
        ))),
        (Some(_), Some(_)) => Err(Failure::Wrong(format!(
            "it holds {} images, give one",
            all.len()
        ))),
    }
}

/// The name of a blob in a layout, and its digest.
fn blob(digest: &Digest) -> Result<(String, String), Failure> {
    let text = digest.to_string();
    match text.strip_prefix("sha256:") {
        Some(hex) if is_hex(hex) => Ok((format!("blobs/sha256/{hex}"), hex.to_owned())),
        _ => Err(Failure::Wrong(format!("{text:?} is no sha256"))),
    }
}

fn json<T: DeserializeOwned>(name: &str, bytes: &[u8]) -> Result<T, Failure> {
    serde_json::from_slice(bytes).map_err(|error| Failure::Wrong(format!("{name}: {error}")))
}

fn sha256(bytes: &[u8]) -> String {
    use sha2::Digest as _;
    hex(&sha2::Sha256::digest(bytes))
}

/// Whether a directory is an OCI layout.
pub(crate) fn is_layout(directory: &Path) -> bool {
    fs::exists(directory.join("oci-layout")).unwrap_or(false)
}
