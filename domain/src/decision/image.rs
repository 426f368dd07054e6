//! References to images, and patterns of them. Compared as parsed, never as texts: what an engine
//! would make of a short name is made first (`python` is `docker.io/library/python:latest`).
//!
//! Grammar: distribution/reference of the CNCF Distribution project.

use std::fmt;

/// Longest reference, bytes.
const MAX_REFERENCE: usize = 512;

/// What a name without a registry is of.
const DEFAULT_REGISTRY: &str = "docker.io";

/// An image by its parts.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ImageReference {
    /// Host, with its port where it has one.
    pub registry: String,
    /// Path in the registry.
    pub repository: String,
    /// Tag; none where only a digest is given.
    pub tag: Option<String>,
    /// `sha256:...`; where there is one, engines do not look at the tag.
    pub digest: Option<String>,
}

/// A text that is no reference, or no pattern of one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is no {what}: {why}")]
pub struct ImageReferenceError {
    text: String,
    what: &'static str,
    why: &'static str,
}

impl ImageReference {
    /// Takes a reference apart.
    ///
    /// # Errors
    ///
    /// What is wrong with it.
    pub fn parse(text: &str) -> Result<Self, ImageReferenceError> {
        parse(text, false).map_err(|why| ImageReferenceError {
            text: text.chars().take(64).collect(),
            what: "image reference",
            why,
        })
    }
}

impl fmt::Display for ImageReference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.registry, self.repository)?;
        if let Some(tag) = &self.tag {
            write!(f, ":{tag}")?;
        }
        if let Some(digest) = &self.digest {
            write!(f, "@{digest}")?;
        }
        Ok(())
    }
}

/// References with `*` in the place of any characters within one component of the path, or within
/// the tag. A registry is written out.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ImagePattern(ImageReference);

impl ImagePattern {
    /// Takes a pattern apart.
    ///
    /// # Errors
    ///
    /// What is wrong with it.
    pub fn parse(text: &str) -> Result<Self, ImageReferenceError> {
        parse(text, true)
            .map(Self)
            .map_err(|why| ImageReferenceError {
                text: text.chars().take(64).collect(),
                what: "pattern of image references",
                why,
            })
    }

    /// Whether a reference is one of these.
    ///
    /// A reference with a digest is whatever has that digest, so a tag in the pattern says nothing
    /// of it unless that is `*`.
    pub fn matches(&self, image: &ImageReference) -> bool {
        let Self(pattern) = self;
        let path = |path: &ImageReference| -> Vec<String> {
            path.repository.split('/').map(str::to_owned).collect()
        };
        let (wanted, has) = (path(pattern), path(image));
        let tag = match (&pattern.digest, &image.digest) {
            (Some(wanted), has) => has.as_ref() == Some(wanted),
            (None, Some(_)) => pattern.tag.as_deref() == Some("*"),
            (None, None) => match (&pattern.tag, &image.tag) {
                (Some(wanted), Some(has)) => glob(wanted, has),
                _ => false,
            },
        };
        tag && pattern.registry == image.registry
            && wanted.len() == has.len()
            && wanted
                .iter()
                .zip(&has)
                .all(|(wanted, has)| glob(wanted, has))
    }
}

impl fmt::Display for ImagePattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Whether a text is of a pattern with `*`. Goes back to the last `*` only: linear in practice,
/// and never worse than the product of both lengths.
fn glob(pattern: &str, text: &str) -> bool {
    let (pattern, text) = (pattern.as_bytes(), text.as_bytes());
    let (mut p, mut t, mut back) = (0, 0, None);
    while t < text.len() {
        match pattern.get(p) {
            Some(b'*') => {
                back = Some((p, t));
                p += 1;
            }
            Some(byte) if *byte == text[t] => {
                p += 1;
                t += 1;
            }
            _ => match &mut back {
                Some((star, taken)) => {
                    *taken += 1;
                    (p, t) = (*star + 1, *taken);
                }
                None => return false,
            },
        }
    }
    pattern[p..].iter().all(|byte| *byte == b'*')
}

fn parse(text: &str, wild: bool) -> Result<ImageReference, &'static str> {
    if text.len() > MAX_REFERENCE {
        return Err("longer than 512 bytes");
    }
    let (name, digest) = match text.split_once('@') {
        Some((name, digest)) => (name, Some(digest)),
        None => (text, None),
    };
    if !digest.is_none_or(is_digest) {
        return Err("a digest is sha256: and 64 hexadecimal digits in small letters");
    }
    // A colon before a slash is of the registry's port.
    let (name, tag) = match name.rsplit_once(':') {
        Some((name, tag)) if !tag.contains('/') => (name, Some(tag)),
        _ => (name, None),
    };
    if !tag.is_none_or(|tag| is_tag(tag, wild)) {
        return Err("a tag is 1 to 128 letters, digits, `_`, `.` and `-`, the first no `.` or `-`");
    }
    let (registry, path) = match name.split_once('/') {
        Some((first, rest)) if first.contains(['.', ':']) || first == "localhost" => (first, rest),
        _ => (DEFAULT_REGISTRY, name),
    };
    if !is_registry(registry) {
        return Err("a registry is a host name in small letters, with its port where it has one");
    }
    if !path
        .split('/')
        .all(|component| is_component(component, wild))
    {
        return Err(
            "a path is components of small letters and digits, with `.`, `_`, `__` or `-` between",
        );
    }
    let is_official = registry == DEFAULT_REGISTRY && !path.contains('/');
    let tag = tag.or_else(|| digest.is_none().then_some("latest"));
    let parsed = ImageReference {
        registry: registry.to_owned(),
        repository: if is_official {
            format!("library/{path}")
        } else {
            path.to_owned()
        },
        tag: tag.map(str::to_owned),
        digest: digest.map(str::to_owned),
    };
    // What was left out counts too.
    if parsed.to_string().len() > MAX_REFERENCE {
        return Err("longer than 512 bytes");
    }
    Ok(parsed)
}

fn is_digest(text: &str) -> bool {
    text.strip_prefix("sha256:").is_some_and(|digits| {
        digits.len() == 64
            && digits
                .bytes()
                .all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
    })
}

fn is_tag(text: &str, wild: bool) -> bool {
    let fits =
        |byte: u8| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte) || (wild && byte == b'*');
    (1..=128).contains(&text.len()) && text.bytes().all(fits) && !text.starts_with(['.', '-'])
}

fn is_registry(text: &str) -> bool {
    let (host, port) = match text.split_once(':') {
        Some((host, port)) => (host, Some(port)),
        None => (text, None),
    };
    let is_label = |label: &str| {
        !label.is_empty()
            && label
                .bytes()
                .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    host.split('.').all(is_label)
        && port.is_none_or(|port| {
            port.bytes().all(|byte| byte.is_ascii_digit())
                && port.parse::<u16>().is_ok_and(|port| port > 0)
        })
}

fn is_component(text: &str, wild: bool) -> bool {
    let is_word =
        |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || (wild && byte == b'*');
    let fits = |byte: u8| is_word(byte) || b"._-".contains(&byte);
    let ends = [text.bytes().next(), text.bytes().next_back()];
    text.bytes().all(fits)
        && ends.iter().all(|end| end.is_some_and(is_word))
        && !["..", "___", "._", "_.", "-.", ".-", "-_", "_-"]
            .iter()
            .any(|wrong| text.contains(wrong))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const DIGEST: &str = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

    #[test]
    fn references_are_what_an_engine_makes_of_them() {
        let digested = format!("python@{DIGEST}");
        let both = format!("ghcr.io/a/b:1@{DIGEST}");
        for (text, expected) in [
            ("python", "docker.io/library/python:latest"),
            ("python:3.12-slim", "docker.io/library/python:3.12-slim"),
            ("mcp-forge/custom:x", "docker.io/mcp-forge/custom:x"),
            ("docker.io/python", "docker.io/library/python:latest"),
            ("localhost/a", "localhost/a:latest"),
            ("localhost:5000/a/b:c", "localhost:5000/a/b:c"),
            ("quay.io/a/b/c_d", "quay.io/a/b/c_d:latest"),
            (&digested, &format!("docker.io/library/python@{DIGEST}")),
            (&both, &both),
        ] {
            let parsed = ImageReference::parse(text).unwrap();
            assert_eq!(parsed.to_string(), expected, "{text}");
            assert_eq!(ImageReference::parse(expected), Ok(parsed), "{text}");
        }
    }

    #[test]
    fn what_is_no_reference_is_told() {
        let long = "a".repeat(513);
        let longer_when_whole = "a".repeat(500);
        for (text, why) in [
            ("", "a path is"),
            ("Python", "a path is"),
            ("a b", "a path is"),
            ("a//b", "a path is"),
            ("../a", "a registry is"),
            ("a/../b", "a path is"),
            ("/a", "a path is"),
            ("a*", "a path is"),
            ("a:", "a tag is"),
            ("a:-x", "a tag is"),
            ("a:x y", "a tag is"),
            ("a:*", "a tag is"),
            ("a@", "a digest is"),
            ("a@sha256:abc", "a digest is"),
            ("a@sha512:abc", "a digest is"),
            ("-a.io/b", "a registry is"),
            ("Quay.io/a", "a registry is"),
            ("quay.io:0/a", "a registry is"),
            ("quay.io:99999/a", "a registry is"),
            ("quay.io:/a", "a registry is"),
            ("http://a/b", "a registry is"),
            ("a\0", "a path is"),
            (&long, "longer than"),
            (&longer_when_whole, "longer than"),
        ] {
            let error = ImageReference::parse(text).unwrap_err();
            assert!(error.why.starts_with(why), "{text}: {error}");
        }
    }

    #[test]
    fn patterns_match_parts_and_no_more() {
        let digested = format!("mcp-forge/custom:a@{DIGEST}");
        let pinned = format!("python@{DIGEST}");
        let other = pinned.replace("0123", "ffff");
        for (pattern, image, expected) in [
            ("mcp-forge/custom:*", "mcp-forge/custom:a", true),
            ("mcp-forge/custom:*", "mcp-forge/custom", true),
            ("mcp-forge/custom:*", "docker.io/mcp-forge/custom:a", true),
            (
                "mcp-forge/custom:*",
                "evil.example/mcp-forge/custom:a",
                false,
            ),
            ("mcp-forge/custom:*", "mcp-forge/custom-evil:a", false),
            ("mcp-forge/custom:*", "mcp-forge/custom/evil:a", false),
            ("mcp-forge/custom:*", &digested, true),
            ("mcp-forge/custom:a", &digested, false),
            ("mcp-forge/*", "mcp-forge/any", true),
            ("mcp-forge/*", "mcp-forge/any:other", false),
            ("mcp-forge/*:*", "mcp-forge/a/b:c", false),
            ("python:3.*-slim", "python:3.12-slim", true),
            ("python:3.*-slim", "python:3.12", false),
            ("python:3.*", "python:4.3.0", false),
            ("python", "python:latest", true),
            ("python", "python:3", false),
            (&pinned, &pinned, true),
            (&pinned, &other, false),
            (&pinned, "python", false),
            ("localhost:5000/a:*", "localhost:5001/a:x", false),
        ] {
            let parsed = ImagePattern::parse(pattern).unwrap();
            let image = ImageReference::parse(image).unwrap();
            assert_eq!(parsed.matches(&image), expected, "{pattern} {image}");
        }
        for pattern in ["*", "*.io/a", "quay.*/a", "a:*:b", "a@*"] {
            // The first is a name at the default registry, and no other one.
            let parsed = ImagePattern::parse(pattern);
            let evil = ImageReference::parse("evil.example/a:latest").unwrap();
            assert!(
                parsed.is_err() || !parsed.unwrap().matches(&evil),
                "{pattern}"
            );
        }
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "[a-z0-9:/@*._\\-é\0]{0,40}", other in "[a-z0-9:/@*.]{0,20}") {
            let image = ImageReference::parse(&other);
            if let (Ok(pattern), Ok(image)) = (ImagePattern::parse(&text), &image) {
                let _ = pattern.matches(image);
            }
            if let Ok(reference) = ImageReference::parse(&text) {
                let again = ImageReference::parse(&reference.to_string());
                prop_assert_eq!(again, Ok(reference.clone()));
                let own = ImagePattern::parse(&reference.to_string()).unwrap();
                prop_assert!(own.matches(&reference));
            }
        }

        #[test]
        fn a_glob_matches_what_it_was_made_of(parts in prop::collection::vec("[a-c]{0,3}", 1..5)) {
            prop_assert!(glob(&parts.join("*"), &parts.concat()));
        }
    }
}
