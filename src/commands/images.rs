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
use mcp_forge_ports::driven::{ImageProgress, ImageRegistry, ImageStore};
use mcp_forge_ports::vocabulary::{Image, ImportedImage};
use mcp_forge_registry::Registry;
use serde_json::json;

use super::{counted, plain, print, printed, say};
use crate::cli::Images;
use crate::compose::image_store;
use crate::settings::Settings;

/// Digits of an id that are shown, as engines do.
const SHOWN: usize = 12;

/// Does it.
///
/// # Errors
///
/// What kept it from that, with the remedy.
pub(crate) async fn images(command: &Images, settings: &Settings) -> anyhow::Result<ExitCode> {
    let store = image_store(settings)?;
    match command {
        Images::Import { source, name } => import(&store, source, name.as_deref()).await,
        Images::Pull { reference, name } => {
            let registry = Registry::new(settings.image_bytes());
            pull(&store, &registry, reference, name.as_deref()).await
        }
        Images::List { json } => list(&store, *json).await,
        Images::Remove { images } => remove(&store, images).await,
    }
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

async fn import(store: &DiskImages, source: &Path, name: Option<&str>) -> anyhow::Result<ExitCode> {
    // Before the work, which may take minutes.
    let name = name.map(reference).transpose()?;
    let imported = unpack(store, source).await?;
    let name = match (name, &imported.name) {
        (Some(name), _) => Some(name),
        (None, Some(own)) => Some(
            reference(own).with_context(|| format!("the archive calls it {own:?}; give --name"))?,
        ),
        (None, None) => None,
    };
    let again = format!("images import --name REFERENCE {}", source.display());
    named(store, &imported, name, &again).await
}

async fn pull(
    store: &DiskImages,
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
    let known = store.list().await.map_err(told)?;
    let known: Vec<String> = known.into_iter().map(|image| image.id).collect();
    let beside = store.beside().await.map_err(told)?;
    let (bar, progress) = bar("pulling");
    let full = parsed.to_string();
    let fetched = registry.fetch(&full, beside.path(), &known, progress).await;
    bar.finish_and_clear();
    fetched.map_err(told)?;
    let imported = unpack(store, beside.path()).await?;
    let again = format!("images pull --name REFERENCE {wanted}");
    named(store, &imported, name.or(own), &again).await
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

async fn unpack(store: &DiskImages, source: &Path) -> anyhow::Result<ImportedImage> {
    let (bar, progress) = bar("unpacking");
    let imported = store.import(source, progress).await;
    bar.finish_and_clear();
    imported.map_err(told)
}

/// Gives it its name, and tells it. `again` is the command that would give it one.
async fn named(
    store: &DiskImages,
    imported: &ImportedImage,
    name: Option<String>,
    again: &str,
) -> anyhow::Result<ExitCode> {
    let id = &imported.image.id;
    let shown = match name {
        Some(name) => {
            store.tag(id, &name).await.map_err(told)?;
            name
        }
        None => {
            say(&format!(
                "mcp-forge: it has no name; give one: mcp-forge {again}"
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

fn value(image: &Image) -> serde_json::Value {
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

async fn remove(store: &DiskImages, images: &[String]) -> anyhow::Result<ExitCode> {
    for image in images {
        // An id, or the beginning of one, is no reference.
        let is_id = image.len() >= SHOWN && image.bytes().all(|byte| byte.is_ascii_hexdigit());
        let wanted = match image.starts_with("sha256:") || is_id {
            true => image.clone(),
            false => reference(image)?,
        };
        store.find(&wanted).await.map_err(told)?;
        store.remove(&wanted).await.map_err(told)?;
    }
    Ok(ExitCode::SUCCESS)
}
