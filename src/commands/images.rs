//! `mcp-forge images`: the images that sandboxes may be made of.

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::SystemTime;

use anyhow::{Context, anyhow, bail};
use indicatif::{ProgressBar, ProgressStyle};
use mcp_forge_domain::decision::ImageReference;
use mcp_forge_domain::limits::format_byte_size;
use mcp_forge_images::DiskImages;
use mcp_forge_ports::PortError;
use mcp_forge_ports::driven::{
    AuditLog, IdKind, IdSource, ImageProgress, ImageRegistry, ImageStore,
};
use mcp_forge_ports::vocabulary::{AuditEvent, AuditKind, Image, ImportedImage, Severity};
use mcp_forge_registry::Registry;
use serde_json::{Value, json};

use super::signals::{Endings, status};
use super::{counted, plain, print, printed, say};
use crate::cli::Images;
use crate::compose::{audit_log, image_store};
use crate::settings::Settings;
use crate::world::RandomIds;

/// Digits of an id that are shown, as engines do.
const SHOWN: usize = 12;

/// Does it.
///
/// # Errors
///
/// What kept it from that, with the remedy.
pub(crate) async fn images(command: &Images, settings: &Settings) -> anyhow::Result<ExitCode> {
    let mut signals = Endings::catch()?;
    let done = work(command, settings);
    tokio::select! {
        done = done => done,
        signal = signals.next() => {
            say(&format!("mcp-forge: {signal}: nothing was changed that was not told above"));
            Ok(ExitCode::from(status(signal)))
        }
    }
}

async fn work(command: &Images, settings: &Settings) -> anyhow::Result<ExitCode> {
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
