//! The file with the operator's policy of sandboxes: TOML, `mcp_forge_domain::decision` says what
//! is in it.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use anyhow::{Context, anyhow, bail};
use mcp_forge_domain::decision::{CheckedPolicy, SandboxPolicy};
use serde_path_to_error::Segment;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::given::{self, Breaks, Fault, parse_toml};

/// Most faults of form that are told; each costs a reading of the whole file.
const MAX_FAULTS: usize = 20;

/// Reads and checks a policy, its examples included.
///
/// # Errors
///
/// Where it cannot be read, or everything that is wrong with it.
pub(crate) fn load(path: &Path) -> anyhow::Result<CheckedPolicy> {
    load_as(path, &path.display().to_string())
}

/// The same, under another name in what is told.
pub(super) fn load_as(path: &Path, shown: &str) -> anyhow::Result<CheckedPolicy> {
    let text = read(path).with_context(|| format!("policy file {shown}"))?;
    parse(&text).map_err(|told| {
        let told: Vec<String> = told
            .into_iter()
            .map(|told| format!("{shown}:{told}"))
            .collect();
        anyhow!(told.join("\n"))
    })
}

fn read(path: &Path) -> anyhow::Result<String> {
    let text = given::read(path)?;
    if path.extension().is_none_or(|ending| ending != "toml") {
        bail!("its name must end in .toml");
    }
    // It says what is allowed, so nobody else may say it.
    let (owner, own) = (fs::metadata(path)?.uid(), nix::unistd::geteuid().as_raw());
    if ![0, own].contains(&owner) {
        bail!("it belongs to user {owner}, must be of user {own} or root; `chown` it");
    }
    Ok(text)
}

/// The policy in a text.
///
/// # Errors
///
/// Everything that is wrong, each with its line where it has one: `3: ...`, or ` ...`.
pub(crate) fn parse(text: &str) -> Result<CheckedPolicy, Vec<String>> {
    let (root, mut faults, breaks) = parse_toml(text);
    let broken = !faults.is_empty();
    let policy = form(root, &breaks, &mut faults);
    faults.sort_by_key(|fault| fault.line);
    let mut told: Vec<String> = faults
        .into_iter()
        .map(|fault| format!("{}: {}", fault.line, fault.what))
        .collect();
    // What is left of a policy may be wrong for what is not.
    match policy.map(|policy| CheckedPolicy::new(&policy)) {
        Some(Ok(checked)) if told.is_empty() => return Ok(checked),
        Some(Err(faults)) if !broken => {
            told.extend(faults.0.into_iter().map(|fault| format!(" {fault}")));
        }
        _ => {}
    }
    Err(told)
}

/// The policy of what has the form of one; `faults` gets what has not.
///
/// What was found is taken out and the rest is read again, since serde tells one fault a time.
fn form(
    mut root: Spanned<DeTable<'_>>,
    breaks: &Breaks,
    faults: &mut Vec<Fault>,
) -> Option<SandboxPolicy> {
    let unreadable: Vec<usize> = faults.iter().map(|fault| fault.line).collect();
    // Fields that were taken out are not missing.
    let mut taken: Vec<(String, String)> = Vec::new();
    for _ in 0..MAX_FAULTS {
        let reader = toml::de::Deserializer::from(root.clone());
        let error = match serde_path_to_error::deserialize(reader) {
            Ok(policy) => return Some(policy),
            Err(error) => error,
        };
        let path = error.path().to_string();
        let what = error.inner().message();
        let keys: Vec<&Segment> = error.path().iter().collect();
        let at = take_out(root.get_mut(), &keys)?;
        let line = breaks.line(at);
        let follows = |(of, missing): &(_, String)| *of == path && what.contains(missing);
        if !taken.iter().any(follows) && !unreadable.contains(&line) {
            // The line tells which of a list it is.
            let names = keys.iter().filter_map(|key| match key {
                Segment::Map { key } => Some(key.as_str()),
                _ => None,
            });
            let what = format!("{}: {what}", names.collect::<Vec<_>>().join("."));
            faults.push(Fault { line, what });
        }
        taken.retain(|(of, _)| !of.starts_with(&path));
        if let Some((of, field)) = path.rsplit_once('.') {
            taken.push((of.to_owned(), format!("missing field `{field}`")));
        }
    }
    None
}

/// Takes out what has these keys, and tells where it began; nothing where there is no such thing.
fn take_out(table: &mut DeTable<'_>, keys: &[&Segment]) -> Option<usize> {
    let (first, below) = keys.split_first()?;
    let Segment::Map { key } = first else {
        return None;
    };
    if below.is_empty() {
        let (name, _) = table.remove_entry(key.as_str())?;
        return Some(name.span().start);
    }
    take_out_of(table.get_mut(key.as_str())?, below)
}

fn take_out_of(value: &mut Spanned<DeValue<'_>>, keys: &[&Segment]) -> Option<usize> {
    let (first, below) = keys.split_first()?;
    match (value.get_mut(), first) {
        (DeValue::Table(table), _) => take_out(table, keys),
        (DeValue::Array(array), Segment::Seq { index }) => {
            let begin = array.get(*index)?.span().start;
            if below.is_empty() {
                let rest = array.iter().enumerate().filter(|(at, _)| at != index);
                *array = rest.map(|(_, value)| value.clone()).collect();
                return Some(begin);
            }
            take_out_of(array.get_mut(*index)?, below)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_example_is_sound() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/policy.toml");
        load(Path::new(path)).unwrap_or_else(|error| panic!("{error:#}"));
    }

    #[test]
    fn what_is_wrong_is_told_with_its_place() {
        assert_eq!(parse(""), Ok(CheckedPolicy::default()));
        let rule = "[[rules]]\nname = 'a'\ndecision = 'allow'\njustification = 'b'\n";
        for (text, told) in [
            (
                "imagez = []",
                "1: imagez: unknown field `imagez`, expected one of",
            ),
            (
                "\negress = 'yes'",
                "2: egress: invalid type: string \"yes\", expected a boolean",
            ),
            (
                "images = ['A']",
                " images: \"A\" is no pattern of image references",
            ),
            ("egress = ", "1: "),
            (
                &rule.replace("allow", "perhaps"),
                "3: rules.decision: unknown variant `perhaps`",
            ),
            (
                &rule.replace("name", "nmae"),
                "2: rules.nmae: unknown field `nmae`",
            ),
            (
                &format!("{rule}match = [{{uids = 1}}]"),
                "5: rules.match.uids: unknown field `uids`",
            ),
            (
                &format!("{rule}not_match = [{{}}]"),
                " rule \"a\": it speaks of its example",
            ),
            (&"a.".repeat(100_000), "1: "),
            (&"[".repeat(100_000), "1: "),
        ] {
            let error = parse(text).unwrap_err();
            let is_told = error.iter().any(|line| line.starts_with(told));
            assert!(is_told, "{text:.60}: {error:?}");
        }
    }

    #[test]
    fn no_fault_hides_another() {
        let text = "egress = 'yes'\nimages = ['a', 2, 'b', 3]\nimagez = []\nvolume_roots = \n\
                    [[rules]]\nname = 'a'\ndecision = 'perhaps'\nmatch = [['python'], {mounts = [['a', 'b']]}]\n\
                    [[rules]]\ndecision = 1\njustification = 'c'\n\
                    [[rules]]\nname = 'c'\ndecision = 'forbid'\njustification = \"a\\u001b[2J\"\n";
        let told = parse(text).unwrap_err();
        let places: Vec<&str> = told
            .iter()
            .map(|told| told.rsplit_once(": ").unwrap().0)
            .map(|place| place.split(": ").next().unwrap())
            .collect();
        // What is missing in the first rule is told once its decision can be read.
        assert_eq!(
            places,
            ["1", "2", "2", "3", "4", "7", "8", "8", "9", "10"],
            "{told:#?}"
        );
        let text = text.replace("volume_roots = \n", "\n");
        let told = parse(&text).unwrap_err();
        assert_eq!(
            told.last().unwrap(),
            " rule \"c\": its justification must be one line of at most 1000 characters",
            "{told:#?}"
        );
    }
}
