//! Takes the shapes of well-known secrets out of a line.
//!
//! The core puts no secrets in; this is for those that come in a message of the system or in a name
//! that a client chose. The line is JSON by then: no pattern goes past the end of a string.

use std::sync::OnceLock;

use regex::bytes::Regex;

/// What the first group takes stays, and what the second does.
const MASK: &[u8] = b"${1}[masked]${2}";

/// Published forms of keys and tokens, and what no such thing is without, in small letters: the
/// expressions, which take milliseconds to compile, are not needed for most logs.
const FORMS: [(&[&str], &str); 15] = [
    // Amazon access key ids.
    (&["akia", "asia"], r"()(?:AKIA|ASIA)[0-9A-Z]{16}\b"),
    // GitHub, classic and fine-grained; GitLab.
    (
        &["ghp_", "gho_", "ghu_", "ghs_", "ghr_"],
        r"()gh[pousr]_[0-9A-Za-z]{36,255}",
    ),
    (&["github_pat_"], r"()github_pat_[0-9A-Za-z_]{22,255}"),
    (&["glpat-"], r"()glpat-[0-9A-Za-z_-]{20,}"),
    // OpenAI, Anthropic and others; Stripe.
    (&["sk-"], r"()\bsk-[0-9A-Za-z_-]{20,}"),
    (
        &["k_live_", "k_test_"],
        r"()[rs]k_(?:live|test)_[0-9A-Za-z]{16,}",
    ),
    // Slack, Google, Hugging Face, npm, PyPI, SendGrid.
    (&["xox"], r"()xox[abeoprs]-[0-9A-Za-z-]{10,}"),
    (&["aiza"], r"()AIza[0-9A-Za-z_-]{35}"),
    (
        &["hf_", "npm_", "pypi-"],
        r"()(?:hf_[0-9A-Za-z]{30,}|npm_[0-9A-Za-z]{36}|pypi-[0-9A-Za-z_-]{16,})",
    ),
    (&["sg."], r"()SG\.[0-9A-Za-z_-]{16,}\.[0-9A-Za-z_-]{16,}"),
    // JSON Web Tokens (RFC 7519) and bearer tokens (RFC 6750).
    (
        &["eyj"],
        r"()eyJ[0-9A-Za-z_-]{8,}\.eyJ[0-9A-Za-z_-]{8,}\.[0-9A-Za-z_-]*",
    ),
    (&["bearer "], r"(?i)(\bbearer +)[0-9A-Za-z._~+/-]{8,}=*"),
    // Credentials in a URL (RFC 3986, 3.2.1); assignments; private keys (RFC 7468).
    (&["://"], r#"(://[^\s/"\\:@]*:)[^\s/"\\@]+(@)"#),
    (
        &[
            "passw",
            "passphrase",
            "secret",
            "token",
            "apikey",
            "api_key",
            "api-key",
            "access",
        ],
        // Also as a member of a JSON object, whose quotes are escaped here.
        r#"(?i)((?:password|passwd|passphrase|secret|token|(?:api|access|secret)[_-]?key)(?:\\")? ?[=:] ?(?:\\")?)[^\s"\\&,;]+"#,
    ),
    (
        &["private key"],
        r#"()-----BEGIN [A-Z ]{0,20}PRIVATE KEY-----(?:[^"\\]|\\.)*"#,
    ),
];

static COMPILED: [OnceLock<Option<Regex>>; FORMS.len()] = [const { OnceLock::new() }; FORMS.len()];

/// The line without secrets.
pub(crate) fn mask(mut line: Vec<u8>) -> Vec<u8> {
    let small = line.to_ascii_lowercase();
    let contains = |hint: &&str| memchr::memmem::find(&small, hint.as_bytes()).is_some();
    for ((hints, form), compiled) in FORMS.iter().zip(&COMPILED) {
        if hints.iter().any(contains)
            && let Some(form) = compiled.get_or_init(|| Regex::new(form).ok())
        {
            line = form.replace_all(&line, MASK).into_owned();
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    fn masked(text: &str) -> String {
        let line = serde_json::to_vec(&[text, "after"]).unwrap();
        let told: Vec<String> = serde_json::from_slice(&mask(line)).expect("still JSON");
        assert_eq!(told[1], "after");
        told[0].clone()
    }

    #[test]
    fn known_shapes_are_masked_and_nothing_else_is() {
        assert!(FORMS.iter().all(|(_, form)| Regex::new(form).is_ok()));
        let long = "a1B2c3D4e5".repeat(6);
        for (text, expected) in [
            ("key AKIAIOSFODNN7EXAMPLE.", "key [masked]."),
            (&format!("ghp_{long}"), "[masked]"),
            (&format!("github_pat_{long}"), "[masked]"),
            (&format!("glpat-{long}"), "[masked]"),
            (&format!("x sk-ant-{long} y"), "x [masked] y"),
            (&format!("sk_live_{long}"), "[masked]"),
            ("xoxb-1234567890-abc", "[masked]"),
            (&format!("AIza{}", &long[..35]), "[masked]"),
            (&format!("hf_{long}"), "[masked]"),
            (&format!("pypi-{long}"), "[masked]"),
            ("eyJhbGciOiJI.eyJzdWIiOiIx.c2ln", "[masked]"),
            (
                "Authorization: Bearer abcdefgh12",
                "Authorization: Bearer [masked]",
            ),
            ("http://me:pass@host/x", "http://me:[masked]@host/x"),
            ("password=hunter2 and on", "password=[masked] and on"),
            (
                r#"{"db_password": "hunter2", "a": 1}"#,
                r#"{"db_password": "[masked]", "a": 1}"#,
            ),
            (
                "AWS_SECRET_ACCESS_KEY=wJalrXUtnFEMI/K7MDENG",
                "AWS_SECRET_ACCESS_KEY=[masked]",
            ),
            (&format!("xghp_{long}"), "x[masked]"),
            (&format!("SG.{long}.{long}"), "[masked]"),
            ("pypi-AgEIcHlwaS5vcmcCJD", "[masked]"),
            (
                "the access was a secret of passwords",
                "the access was a secret of passwords",
            ),
            ("API_KEY: hunter2;", "API_KEY: [masked];"),
            ("-----BEGIN RSA PRIVATE KEY-----\nMII\"\\x\n", "[masked]"),
            (
                "a skill, risk-free; bearer of news",
                "a skill, risk-free; bearer of news",
            ),
            ("sk-short http://host:80/x", "sk-short http://host:80/x"),
            (&"ab12".repeat(16), &"ab12".repeat(16)),
        ] {
            assert_eq!(masked(text), expected);
        }
    }
}
