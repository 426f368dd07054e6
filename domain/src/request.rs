//! The checks of a request that need nothing but the policy. It does not read the program: that
//! it is well-formed is the interpreter's to say.

use std::collections::BTreeSet;

use mcp_forge_ports::vocabulary::{ExecutionRequest, InputFile, RefusalKind, ResourceLimits};

use crate::byte_size::quoted;
use crate::decision::{ImageReference, Proposal, Verdict};
use crate::limits::format_byte_size;
use crate::output::files::is_sound;
use crate::policy::ExecutionPolicy;
use crate::violation::Violation;

/// Longest correlation id of a caller, characters.
pub const MAX_CORRELATION_ID: usize = 128;

/// Longest name of a program in tracebacks, bytes.
pub const MAX_SOURCE_NAME: usize = 256;

/// Checks a request and gives the limits of its run.
///
/// # Errors
///
/// The first rule that it breaks, in the order correlation id, language, code, source
/// name, stdin, image, limits, files.
pub fn admit(
    policy: &ExecutionPolicy,
    request: &ExecutionRequest,
) -> Result<ResourceLimits, Violation> {
    if let Some(id) = &request.correlation_id {
        check_correlation_id(id)?;
    }
    if let Some(key) = &request.idempotency_key {
        check_idempotency_key(key)?;
    }
    check_language(policy, request)?;
    check_code(&request.code, policy.max_code_bytes)?;
    check_source_name(request.source_name.as_deref())?;
    check_stdin(request.stdin.as_deref(), policy.max_stdin_bytes)?;
    if let Some(image) = &request.image {
        check_image(image)?;
    }
    let limits = policy.limits.resolve(request)?;
    let most = limits.workspace_bytes.min(policy.max_file_bytes as u64);
    check_files(&request.files, policy.max_files, most)?;
    Ok(limits)
}

/// Asks the operator's policy about the sandbox that the request needs.
///
/// # Errors
///
/// `policy_violation` or `approval_required`, with the rule and why.
pub fn decide(policy: &ExecutionPolicy, request: &ExecutionRequest) -> Result<(), Violation> {
    let evaluation = policy.sandboxes.evaluate(&Proposal {
        language: request.language.as_str().to_owned(),
        image: request.image.clone(),
        ..Proposal::default()
    });
    let Some(strictest) = evaluation.decisions.first() else {
        return Ok(());
    };
    let (kind, what) = match evaluation.verdict {
        Verdict::Allow => return Ok(()),
        Verdict::Prompt => (RefusalKind::ApprovalRequired, "asks for approval"),
        Verdict::Forbid => (RefusalKind::PolicyViolation, "forbids this"),
    };
    Err(Violation::general(
        kind,
        format!(
            "the operator's policy {what}, rule {:?}: {}",
            strictest.rule, strictest.justification
        ),
        "`mcp-forge policy explain` tells what the policy says (`--help` how to ask); the operator can change it \
         (`security.policy`)",
    ))
}

/// The image that a reference means.
///
/// # Errors
///
/// `invalid_argument` for what is no reference.
pub fn check_image(image: &str) -> Result<ImageReference, Violation> {
    ImageReference::parse(image).map_err(|error| {
        Violation::invalid(
            "custom_image",
            error.to_string(),
            "an image reference such as mcp-forge/python:3.13".to_owned(),
        )
    })
}

/// Checks a caller's own correlation id.
///
/// # Errors
///
/// `invalid_argument` unless it is `[A-Za-z0-9._:-]{1,128}`.
pub fn check_correlation_id(id: &str) -> Result<(), Violation> {
    let sound = (1..=MAX_CORRELATION_ID).contains(&id.len())
        && id
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"._:-".contains(&byte));
    if sound {
        return Ok(());
    }
    Err(Violation::invalid(
        "correlation_id",
        format!("{} is no correlation id", quoted(id)),
        format!("1 to {MAX_CORRELATION_ID} characters of A-Z a-z 0-9 . _ : -"),
    ))
}

/// Longest idempotency key, bytes.
pub const MAX_IDEMPOTENCY_KEY: usize = 256;

/// Checks a caller's idempotency key.
///
/// # Errors
///
/// `invalid_argument` unless it is 1 to [`MAX_IDEMPOTENCY_KEY`] bytes of visible ASCII.
pub fn check_idempotency_key(key: &str) -> Result<(), Violation> {
    let sound = (1..=MAX_IDEMPOTENCY_KEY).contains(&key.len())
        && key.bytes().all(|byte| byte.is_ascii_graphic());
    if sound {
        return Ok(());
    }
    Err(Violation::invalid(
        "idempotency_key",
        format!("{} is no idempotency key", quoted(key)),
        format!("1 to {MAX_IDEMPOTENCY_KEY} visible ASCII characters (`_meta.idempotencyKey`)"),
    ))
}

fn check_files(files: &[InputFile], most_files: usize, most_bytes: u64) -> Result<(), Violation> {
    if files.len() > most_files {
        return Err(Violation::above(
            "files",
            format!("{} files are more than {most_files}", files.len()),
            format!("up to {most_files} files"),
        ));
    }
    let bytes: u64 = files.iter().map(|file| file.data.len() as u64).sum();
    if bytes > most_bytes {
        let most = format_byte_size(most_bytes);
        return Err(Violation::above(
            "files",
            // Who counts may have stopped at the first byte too many.
            format!("the files exceed the maximum of {most} together"),
            format!("up to {most_bytes} bytes together (the operator's `execution.input_size`)"),
        ));
    }
    let mut paths = BTreeSet::new();
    for InputFile { path, .. } in files {
        if !is_sound(path) || path.chars().any(char::is_control) {
            return Err(Violation::invalid(
                "files",
                format!("{} is no path below the workspace", quoted(path)),
                "relative paths such as `data/a.csv`, without `.` and `..`".to_owned(),
            ));
        }
        if !paths.insert(path.as_str()) {
            return Err(Violation::invalid(
                "files",
                format!("{} is there twice", quoted(path)),
                "each path once".to_owned(),
            ));
        }
    }
    // No file may have to be a directory for another one.
    for path in &paths {
        let parents = path.match_indices('/').map(|(at, _)| &path[..at]);
        if let Some(parent) = parents.into_iter().find(|parent| paths.contains(parent)) {
            return Err(Violation::invalid(
                "files",
                format!("{} is a file and a directory", quoted(parent)),
                "paths of which none lies below another".to_owned(),
            ));
        }
    }
    Ok(())
}

fn check_language(policy: &ExecutionPolicy, request: &ExecutionRequest) -> Result<(), Violation> {
    if policy.languages.contains(&request.language) {
        return Ok(());
    }
    let known: Vec<_> = policy.languages.iter().map(|l| l.as_str()).collect();
    Err(Violation {
        kind: RefusalKind::Unsupported,
        field: Some("language"),
        message: format!("{} cannot be run here", request.language),
        hint: format!(
            "use {}, or let the operator install {} (`mcp-forge doctor` tells what is missing)",
            known.join(" or "),
            request.language
        ),
        allowed: Some(known.join(", ")),
    })
}

fn check_code(code: &str, max: usize) -> Result<(), Violation> {
    let allowed = || format!("1 to {} bytes of text without NUL", max);
    if code.len() > max {
        return Err(Violation::above(
            "code",
            format!(
                "code of {} bytes exceeds the maximum of {}",
                code.len(),
                format_byte_size(max as u64)
            ),
            allowed(),
        )
        .with_hint("put data into files or standard input, and split the program"));
    }
    if code.chars().all(char::is_whitespace) {
        let message = "code is empty".to_owned();
        return Err(Violation::invalid("code", message, allowed()));
    }
    if let Some(at) = code.bytes().position(|byte| byte == 0) {
        let message = format!("code has a NUL byte at offset {at}");
        return Err(Violation::invalid("code", message, allowed()));
    }
    Ok(())
}

fn check_source_name(name: Option<&str>) -> Result<(), Violation> {
    match name {
        Some(name)
            if name.is_empty()
                || name.len() > MAX_SOURCE_NAME
                || name.chars().any(char::is_control) =>
        {
            Err(Violation::invalid(
                "source_name",
                format!("{} is no name of a program", quoted(name)),
                format!("1 to {MAX_SOURCE_NAME} bytes without control characters"),
            ))
        }
        _ => Ok(()),
    }
}

fn check_stdin(stdin: Option<&str>, max: usize) -> Result<(), Violation> {
    match stdin {
        Some(text) if text.len() > max => Err(Violation::above(
            "stdin",
            format!(
                "stdin of {} bytes exceeds the maximum of {}",
                text.len(),
                format_byte_size(max as u64)
            ),
            format!("up to {max} bytes"),
        )),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use mcp_forge_ports::vocabulary::Language;
    use proptest::prelude::*;

    use super::*;

    fn policy() -> ExecutionPolicy {
        ExecutionPolicy {
            languages: vec![Language::Python],
            max_code_bytes: 100,
            max_stdin_bytes: 10,
            ..ExecutionPolicy::default()
        }
    }

    fn python(code: &str) -> ExecutionRequest {
        ExecutionRequest::new(Language::Python, code)
    }

    fn refused(request: &ExecutionRequest) -> (RefusalKind, &'static str, String) {
        let violation = admit(&policy(), request).unwrap_err();
        assert!(!violation.hint.is_empty());
        assert!(violation.allowed.is_some());
        (violation.kind, violation.field.unwrap(), violation.message)
    }

    #[test]
    fn sound_requests_pass() {
        for code in ["1", " 1\n", "é", "\u{feff}1", &"x".repeat(100)] {
            assert!(admit(&policy(), &python(code)).is_ok(), "{code:?}");
        }
        let full = ExecutionRequest {
            stdin: Some("0123456789".into()),
            source_name: Some("a b.py".into()),
            ..python("1")
        };
        assert!(admit(&policy(), &full).is_ok());
        let empty_stdin = ExecutionRequest {
            stdin: Some(String::new()),
            ..python("1")
        };
        assert!(admit(&policy(), &empty_stdin).is_ok());
    }

    #[test]
    fn unsound_code_is_refused() {
        use RefusalKind::{InvalidArgument, LimitExceeded};
        for code in ["", " ", "\n\t\r", "\u{3000}"] {
            let (kind, field, message) = refused(&python(code));
            assert_eq!((kind, field), (InvalidArgument, "code"), "{code:?}");
            assert_eq!(message, "code is empty");
        }
        let (kind, field, message) = refused(&python("print(1)\0"));
        assert_eq!((kind, field), (InvalidArgument, "code"));
        assert!(message.contains("offset 8"), "{message}");
        let (kind, field, message) = refused(&python(&"x".repeat(101)));
        assert_eq!((kind, field), (LimitExceeded, "code"));
        assert!(message.contains("101"), "{message}");
        // Size comes first, so that no megabytes of blanks are looked at.
        let (kind, _, _) = refused(&python(&" ".repeat(101)));
        assert_eq!(kind, LimitExceeded);
    }

    #[test]
    fn another_language_is_unsupported() {
        let (kind, field, message) = refused(&ExecutionRequest::new(Language::R, "1"));
        assert_eq!((kind, field), (RefusalKind::Unsupported, "language"));
        assert_eq!(message, "r cannot be run here");
    }

    #[test]
    fn stdin_and_source_name_are_bounded() {
        let request = ExecutionRequest {
            stdin: Some("01234567890".into()),
            ..python("1")
        };
        let (kind, field, _) = refused(&request);
        assert_eq!((kind, field), (RefusalKind::LimitExceeded, "stdin"));
        for name in ["", "a\nb", "a\0", &"x".repeat(257)] {
            let request = ExecutionRequest {
                source_name: Some(name.to_owned()),
                ..python("1")
            };
            let (kind, field, _) = refused(&request);
            assert_eq!((kind, field), (RefusalKind::InvalidArgument, "source_name"));
        }
    }

    #[test]
    fn files_lie_below_the_workspace_and_are_bounded() {
        let with = |paths: &[&str]| ExecutionRequest {
            files: paths
                .iter()
                .map(|path| InputFile {
                    path: (*path).to_owned(),
                    data: b"12345".to_vec(),
                })
                .collect(),
            ..python("1")
        };
        let policy = ExecutionPolicy {
            max_files: 3,
            max_file_bytes: 12,
            ..policy()
        };
        let refused = |paths: &[&str]| {
            let violation = admit(&policy, &with(paths)).unwrap_err();
            assert_eq!(violation.field, Some("files"));
            (violation.kind, violation.message)
        };
        assert!(admit(&policy, &with(&["a b/é.csv", "a b/..c"])).is_ok());
        for path in ["", "/a", "../a", "a/./b", "a//b", "a/", "a\nb", "a\0"] {
            let (kind, message) = refused(&[path]);
            assert_eq!(kind, RefusalKind::InvalidArgument, "{message}");
        }
        assert_eq!(refused(&["a", "a"]).0, RefusalKind::InvalidArgument);
        let (_, message) = refused(&["a/b", "a"]);
        assert!(message.contains("a file and a directory"), "{message}");
        let (kind, message) = refused(&["a", "b", "c"]);
        assert_eq!(kind, RefusalKind::LimitExceeded);
        assert_eq!(message, "the files exceed the maximum of 12 together");
        let (_, message) = refused(&["a", "b", "c", "d"]);
        assert!(message.contains("4 files"), "{message}");
    }

    #[test]
    fn idempotency_keys_are_visible_ascii() {
        for key in ["a", "1f0c-22", &"x".repeat(256)] {
            assert_eq!(check_idempotency_key(key), Ok(()));
        }
        for key in ["", " ", "a b", "é", "a\n", &"x".repeat(257)] {
            let violation = check_idempotency_key(key).unwrap_err();
            assert_eq!(violation.field, Some("idempotency_key"));
        }
    }

    #[test]
    fn correlation_ids_are_plain() {
        let longest = "x".repeat(128);
        for id in ["a", "A-b_c.d:9", longest.as_str()] {
            assert_eq!(check_correlation_id(id), Ok(()), "{id}");
        }
        let longer = "x".repeat(129);
        for id in ["", " ", "a b", "a\n", "é", "a/b", "{}", longer.as_str()] {
            let violation = check_correlation_id(id).unwrap_err();
            assert_eq!(violation.kind, RefusalKind::InvalidArgument);
            assert_eq!(violation.field, Some("correlation_id"));
        }
    }

    proptest! {
        #[test]
        fn any_request_gives_an_answer(code in any::<String>(), stdin in any::<Option<String>>(), memory in any::<Option<String>>(), id in any::<String>()) {
            let request = ExecutionRequest { stdin, memory, ..python(&code) };
            let _ = admit(&policy(), &request);
            let _ = check_correlation_id(&id);
        }
    }
}
