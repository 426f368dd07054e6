//! The file with the operator's policy of sandboxes: TOML, `mcp_forge_domain::decision` says what
//! is in it.

use std::path::Path;

use anyhow::{Context, anyhow, bail};
use mcp_forge_domain::decision::{CheckedPolicy, SandboxPolicy};

/// Reads and checks a policy, its examples included.
///
/// # Errors
///
/// Where it cannot be read, or everything that is wrong with it.
pub(crate) fn load(path: &Path) -> anyhow::Result<CheckedPolicy> {
    let shown = path.display();
    if path.extension().is_none_or(|ending| ending != "toml") {
        bail!("policy file {shown}: its name must end in .toml");
    }
    let text = super::given::read(path).with_context(|| format!("policy file {shown}"))?;
    parse(&text).map_err(|told| anyhow!("{shown}: {}", told.join(&format!("\n{shown}: "))))
}

/// The policy in a text.
pub(crate) fn parse(text: &str) -> Result<CheckedPolicy, Vec<String>> {
    let policy: SandboxPolicy = toml::from_str(text).map_err(|error| {
        let at = error.span().map_or(0, |span| span.start);
        let line = text.bytes().take(at).filter(|byte| *byte == b'\n').count() + 1;
        vec![format!("line {line}: {}", error.message())]
    })?;
    CheckedPolicy::new(&policy).map_err(|faults| faults.0)
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
                "line 1: unknown field `imagez`, expected one of",
            ),
            ("\negress = 'yes'", "line 2: invalid type"),
            (
                "images = ['A']",
                "images: \"A\" is no pattern of image references",
            ),
            ("egress = ", "line 1: "),
            (
                &rule.replace("allow", "perhaps"),
                "line 3: unknown variant `perhaps`",
            ),
            (
                &rule.replace("name", "nmae"),
                "line 2: unknown field `nmae`",
            ),
            (
                &format!("{rule}match = [{{uids = 1}}]"),
                "line 5: unknown field `uids`",
            ),
            (
                &format!("{rule}not_match = [{{}}]"),
                "rule \"a\": it speaks of its example",
            ),
            (&"a.".repeat(100_000), "line 1: "),
            (&"[".repeat(100_000), "line 1: "),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error[0].starts_with(told), "{text:.60}: {error:?}");
        }
    }
}
