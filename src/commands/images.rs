//! `mcp-forge images`: the images that sandboxes may be made of.

use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use anyhow::{Context, anyhow, bail};
use indicatif::{ProgressBar, ProgressStyle};
use mcp_forge_domain::decision::ImageReference;
use mcp_forge_domain::limits::format_byte_size;
use mcp_forge_images::DiskImages;
use mcp_forge_ports::PortError;
use mcp_forge_ports::driven::{
    AuditLog, IdKind, IdSource, ImageProgress, ImageRegistry, ImageStore,
};
use mcp_forge_ports::vocabulary::{
    AuditEvent, AuditKind, Image, ImageRecipe, ImportedImage, Severity,
};
use mcp_forge_registry::Registry;
use serde_json::{Value, json};

use super::signals::{Endings, status};
use super::{counted, plain, print, printed, say};
use crate::cli::Images;
use crate::compose::{Builder, audit_log, image_builder, image_store};
use crate::settings::Settings;
use crate::world::RandomIds;

/// The images of this project, and what an engine builds them of.
const OWN_IMAGES: [(&str, &str); 3] = [
    (
        "python",
        include_str!("../../images/containers/python/Containerfile"),
    ),
    ("r", include_str!("../../images/containers/r/Containerfile")),
    (
        "kernels",
        include_str!("../../images/containers/kernels/Containerfile"),
    ),
];

/// Longest Containerfile, bytes.
const MAX_CONTAINERFILE: u64 = 1 << 20;

/// Lines of a build that failed which are shown.
const LAST_LINES: usize = 20;

/// Between two moves of what shows that something goes on.
const TICK: Duration = Duration::from_millis(100);

/// Digits of an id that are shown, as engines do.
const SHOWN: usize = 12;

/// Does it.
///
/// # Errors
///
/// What kept it from that, with the remedy.
pub(crate) async fn images(
    command: &Images,
    runtime: Option<&str>,
    settings: &Settings,
) -> anyhow::Result<ExitCode> {
    let mut signals = Endings::catch()?;
    let done = work(command, runtime, settings);
    tokio::select! {
        done = done => done,
        signal = signals.next() => {
            say(&format!("mcp-forge: {signal}: nothing was changed that was not told above"));
            Ok(ExitCode::from(status(signal)))
        }
    }
}

async fn work(
    command: &Images,
    runtime: Option<&str>,
    settings: &Settings,
) -> anyhow::Result<ExitCode> {
    let store = image_store(settings)?;
    let with_log = || -> anyhow::Result<Keeper> {
        Ok(Keeper {
            store: store.clone(),
            audit: audit_log(settings)?,
        })
    };
    match command {
        Images::Import { source, name } => with_log()?.import(source, name.as_deref()).await,
        Images::Pull { reference, name } => {
            let registry = Registry::new(settings.image_bytes());
            let keeper = with_log()?;
            keeper.pull(&registry, reference, name.as_deref()).await
        }
        Images::Build {
            image,
            name,
            with,
            arguments,
            network,
        } => {
            let build = Build::new(image, name.as_deref(), arguments, network.as_deref())?;
            let builder = image_builder(with.as_deref(), runtime, settings).await?;
            with_log()?.build(build, &builder).await
        }
        Images::List { json } => list(&store, *json).await,
        Images::Remove { images } => with_log()?.remove(images).await,
    }
}

/// The store, and the log of what is done to it: images decide what runs.
struct Keeper {
    store: DiskImages,
    audit: Arc<dyn AuditLog>,
}

fn told(error: PortError) -> anyhow::Error {
    match &error.hint {
        Some(hint) => anyhow!("{}; {hint}", error.chain()),
        None => anyhow!("{}", error.chain()),
    }
}

/// A name as engines and the policy know it.
fn reference(name: &str) -> anyhow::Result<String> {
    let parsed = ImageReference::parse(name)?;
    if parsed.digest.is_some() {
        bail!("{name:?} has a digest, and names are given without");
    }
    Ok(parsed.to_string())
}

impl Keeper {
    async fn record(&self, kind: AuditKind, details: Value) -> anyhow::Result<()> {
        let details = match details {
            Value::Object(details) => details,
            _ => serde_json::Map::new(),
        };
        let event = AuditEvent {
            time: SystemTime::now(),
            kind,
            severity: Severity::Info,
            run_id: None,
            session: None,
            client: None,
            correlation_id: RandomIds.mint(IdKind::Correlation),
            success: Some(true),
            details,
            error: None,
        };
        self.audit.record(event).await.map_err(told)
    }

    async fn import(&self, source: &Path, name: Option<&str>) -> anyhow::Result<ExitCode> {
        // Before the work, which may take minutes.
        let name = name.map(reference).transpose()?;
        let imported = self.unpack(source).await?;
        let name = match (name, &imported.name) {
            (Some(name), _) => Some(name),
            (None, Some(own)) => Some(
                reference(own)
                    .with_context(|| format!("the archive calls it {own:?}; give --name"))?,
            ),
            (None, None) => None,
        };
        let again = format!("images import --name REFERENCE {}", source.display());
        let from = source.display().to_string();
        self.named(&imported, name, &from, &again).await
    }

    async fn pull(
        &self,
        registry: &dyn ImageRegistry,
        wanted: &str,
        name: Option<&str>,
    ) -> anyhow::Result<ExitCode> {
        let name = name.map(reference).transpose()?;
        let parsed = ImageReference::parse(wanted)?;
        // What is only told by its digest has no name.
        let own = parsed.tag.is_some().then(|| {
            let named = ImageReference {
                digest: None,
                ..parsed.clone()
            };
            named.to_string()
        });
        let known = self.store.list().await.map_err(told)?;
        let known: Vec<String> = known.into_iter().map(|image| image.id).collect();
        let beside = self.store.beside().await.map_err(told)?;
        let (bar, progress) = bar("pulling");
        let full = parsed.to_string();
        let fetched = registry.fetch(&full, beside.path(), &known, progress).await;
        bar.finish_and_clear();
        fetched.map_err(told)?;
        let imported = self.unpack(beside.path()).await?;
        let again = format!("images pull --name REFERENCE {wanted}");
        self.named(&imported, name.or(own), &full, &again).await
    }

    async fn build(&self, build: Build, builder: &Builder) -> anyhow::Result<ExitCode> {
        let (name, image, by) = (build.name.clone(), build.image.clone(), &builder.name);
        let recipe = build.recipe(builder)?;
        say(&format!("mcp-forge: building {} with {by}", plain(&image)));
        let beside = self.store.beside().await.map_err(told)?;
        let archive = beside.path().join("image.tar");
        let bar = ProgressBar::new_spinner().with_message("building");
        if let Ok(style) = ProgressStyle::with_template("{spinner} {elapsed} {wide_msg}") {
            bar.set_style(style);
        }
        bar.enable_steady_tick(TICK);
        let last = Arc::new(Mutex::new(VecDeque::new()));
        let (shown, kept) = (bar.clone(), Arc::clone(&last));
        let log = move |line: &str| {
            shown.set_message(line.to_owned());
            let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
            kept.push_back(line.to_owned());
            if kept.len() > LAST_LINES {
                kept.pop_front();
            }
        };
        let built = builder.port.build(&recipe, &archive, Arc::new(log)).await;
        bar.finish_and_clear();
        if let Err(error) = built {
            let last = last.lock().unwrap_or_else(PoisonError::into_inner);
            last.iter().for_each(|line| say(line));
            return Err(told(error));
        }
        let imported = self.unpack(&archive).await?;
        let again = format!("images build --name REFERENCE {image}");
        let from = format!("{image} built with {by}");
        self.named(&imported, Some(name), &from, &again).await
    }

    async fn unpack(&self, source: &Path) -> anyhow::Result<ImportedImage> {
        let (bar, progress) = bar("unpacking");
        let imported = self.store.import(source, progress).await;
        bar.finish_and_clear();
        imported.map_err(told)
    }

    /// Gives it its name, and tells it. `again` is the command that would give it one.
    async fn named(
        &self,
        imported: &ImportedImage,
        name: Option<String>,
        from: &str,
        again: &str,
    ) -> anyhow::Result<ExitCode> {
        let id = &imported.image.id;
        let details = json!({"image": format!("sha256:{id}"), "name": name, "from": from});
        self.record(AuditKind::ImageImport, details).await?;
        let shown = match name {
            Some(name) => {
                self.store.tag(id, &name).await.map_err(told)?;
                name
            }
            None => {
                say(&format!(
                    "mcp-forge: it has no name, which runs need; give one: mcp-forge {again}"
                ));
                id[..SHOWN].to_owned()
            }
        };
        if imported.skipped > 0 {
            let skipped = counted(
                imported.skipped,
                "device or pipe was",
                "devices and pipes were",
            );
            say(&format!("mcp-forge: {skipped} left out"));
        }
        print(&format!("{shown}\n")).context("cannot write the name")?;
        Ok(ExitCode::SUCCESS)
    }

    async fn remove(&self, images: &[String]) -> anyhow::Result<ExitCode> {
        for image in images {
            // An id, or the beginning of one, is no reference.
            let is_id = image.len() >= SHOWN && image.bytes().all(|byte| byte.is_ascii_hexdigit());
            let wanted = match image.starts_with("sha256:") || is_id {
                true => image.clone(),
                false => reference(image)?,
            };
            let found = self.store.find(&wanted).await.map_err(told)?;
            self.store.remove(&wanted).await.map_err(told)?;
            let details = json!({"image": format!("sha256:{}", found.id), "name": wanted});
            self.record(AuditKind::ImageRemove, details).await?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// What is to be built.
struct Build {
    image: String,
    name: String,
    containerfile: String,
    arguments: BTreeMap<String, String>,
    network: Option<String>,
}

impl Build {
    fn new(
        image: &str,
        name: Option<&str>,
        arguments: &[String],
        network: Option<&str>,
    ) -> anyhow::Result<Self> {
        let own = OWN_IMAGES.iter().find(|(own, _)| *own == image);
        let containerfile = match own {
            Some((_, text)) => (*text).to_owned(),
            None => containerfile(Path::new(image))?,
        };
        let name = match (name, own) {
            (Some(name), _) => reference(name)?,
            (None, Some((own, _))) => reference(&format!("mcp-forge/{own}"))?,
            (None, None) => bail!("what {image:?} builds has no name; give --name"),
        };
        let mut values = BTreeMap::new();
        for argument in arguments {
            let value = argument
                .split_once('=')
                .filter(|(name, _)| !name.is_empty());
            let (name, value) =
                value.with_context(|| format!("--build-arg {argument:?} is not NAME=VALUE"))?;
            values.insert(name.to_owned(), value.to_owned());
        }
        Ok(Self {
            image: image.to_owned(),
            name,
            containerfile,
            arguments: values,
            network: network.map(str::to_owned),
        })
    }

    /// As an engine builds it, or of packages.
    fn recipe(self, builder: &Builder) -> anyhow::Result<ImageRecipe> {
        if builder.engine {
            return Ok(ImageRecipe::Containerfile {
                text: self.containerfile,
                arguments: self.arguments,
                network: self.network,
            });
        }
        if !OWN_IMAGES.iter().any(|(own, _)| *own == self.image) {
            let instead = &builder.name;
            bail!(
                "a Containerfile is built by podman or docker, and this would be built with {instead}"
            );
        }
        if !self.arguments.is_empty() || self.network.is_some() {
            bail!(
                "--build-arg and --network are for podman and docker; MIRROR in the environment names a mirror of Debian"
            );
        }
        Ok(ImageRecipe::Packages(self.image))
    }
}

/// The text of a Containerfile.
fn containerfile(path: &Path) -> anyhow::Result<String> {
    let shown = path.display();
    let none =
        || format!("{shown} is no Containerfile; give python, r, kernels or the path of one");
    let file = File::open(path).with_context(none)?;
    if !file.metadata().with_context(none)?.is_file() {
        bail!(none());
    }
    let mut text = String::new();
    let read = file.take(MAX_CONTAINERFILE + 1).read_to_string(&mut text);
    if read.with_context(none)? as u64 > MAX_CONTAINERFILE {
        bail!("{shown} has more than {MAX_CONTAINERFILE} bytes");
    }
    Ok(text)
}

/// A bar at a terminal, and who moves it.
fn bar(what: &'static str) -> (ProgressBar, ImageProgress) {
    let bar = ProgressBar::new(0).with_message(what);
    let template = "{msg} {bar:30} {bytes} of {total_bytes}, {eta}";
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    let shown = bar.clone();
    let progress = move |done, all| {
        shown.set_length(all);
        shown.set_position(done);
    };
    (bar, Arc::new(progress))
}

async fn list(store: &DiskImages, as_json: bool) -> anyhow::Result<ExitCode> {
    let images = store.list().await.map_err(told)?;
    let text = if as_json {
        let all: Vec<_> = images.iter().map(value).collect();
        format!("{:#}\n", json!(all))
    } else {
        images.iter().map(line).collect()
    };
    Ok(printed(&text, ExitCode::SUCCESS))
}

fn seconds(time: SystemTime) -> u64 {
    let since = time.duration_since(SystemTime::UNIX_EPOCH);
    since.unwrap_or_default().as_secs()
}

fn value(image: &Image) -> Value {
    let imported = jiff::Timestamp::try_from(image.imported).map(|time| time.to_string());
    json!({
        "id": format!("sha256:{}", image.id),
        "names": image.names,
        "bytes": image.bytes,
        "imported": imported.ok(),
    })
}

fn line(image: &Image) -> String {
    let age = seconds(SystemTime::now()).saturating_sub(seconds(image.imported));
    let age = match age {
        0..3600 => format!("{} min", age / 60),
        3600..86_400 => format!("{} h", age / 3600),
        _ => counted(age / 86_400, "day", "days"),
    };
    let names = match image.names.as_slice() {
        [] => "-".to_owned(),
        names => names
            .iter()
            .map(|name| plain(name))
            .collect::<Vec<_>>()
            .join(" "),
    };
    let id: String = image.id.chars().take(SHOWN).collect();
    // In whole MiB, as far as there are some.
    let bytes = match image.bytes {
        small @ 0..1_048_576 => small,
        large => large & !0xf_ffff,
    };
    format!("{id}  {:>6}  {age:>8}  {names}\n", format_byte_size(bytes))
}
