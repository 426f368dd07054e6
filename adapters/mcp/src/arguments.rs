//! Turns the JSON arguments of `execute_python` and `execute_r` into an `ExecutionRequest`.
//!
//! Every bad input is a [`Fault`], never a panic and never a silent default. Syntax of sizes, bounds
//! of all values but oddly written numbers, and everything else that is policy is left to the domain.

use std::ops::RangeInclusive;

use mcp_forge_ports::vocabulary::{ExecutionRequest, Language, MIN_CPU_QUOTA, RefusalKind};
use serde_json::{Map, Value};

use crate::input_files::{self, Source};
use crate::settings::ArgumentBounds;
use crate::value::{Fault, Whole, describe, echo, text};
use crate::written::WrittenNumbers;

/// The arguments that exist.
pub(crate) const BUILT: [&str; 8] = [
    "code",
    "timeout",
    "memory",
    "cpu_quota",
    "stdin",
    "files",
    "background",
    "custom_image",
];

/// Arguments of the public interface that are not built yet, with what to do without them.
const LATER: [(&str, &str); 4] = [
    (
        "session_id",
        "put everything into one program: nothing is kept between calls",
    ),
    (
        "backend",
        "leave it out: each call runs in a fresh sandbox of its own",
    ),
    (
        "environment",
        "leave it out and use what the interpreter already offers",
    ),
    (
        "mcp_tools",
        "call the other tools yourself and put their results into `code`",
    ),
];

/// How alike two names must be to suggest one for the other (0 to 1).
const LIKENESS: f64 = 0.8;

/// What a call asks for.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Call {
    /// Without the files.
    pub(crate) request: ExecutionRequest,
    pub(crate) files: Vec<Source>,
    pub(crate) background: bool,
}

/// Reads the arguments of the tool `tool`, whose numbers were written like this.
pub(crate) fn parse(
    tool: &str,
    language: Language,
    bounds: &ArgumentBounds,
    mut arguments: Map<String, Value>,
    written: &WrittenNumbers,
) -> Result<Call, Fault> {
    // Ordered by name, so that of several faults the same one is told each time.
    let mut names: Vec<&String> = arguments.keys().collect();
    names.sort_unstable();
    for name in names {
        check_name(tool, name, &arguments[name])?;
    }

    let mut take = |name: &str| arguments.remove(name).unwrap_or(Value::Null);
    let mut string = |name, allowed: &str| text(name, take(name), written.get(name), allowed);
    let code_bound = format!("a string of at most {} bytes", bounds.max_code_bytes);
    let Some(code) = string("code", &code_bound)? else {
        return Err(Fault::invalid(
            "code",
            "`code` is missing".to_owned(),
            "send the program as the string `code`".to_owned(),
            &code_bound,
        ));
    };
    let mut request = ExecutionRequest::new(language, code);
    request.memory = string("memory", &bounds.memory())?;
    let input = format!("a string of at most {} bytes", bounds.max_stdin_bytes);
    request.stdin = string("stdin", &input)?;
    request.image = string(
        "custom_image",
        "an image reference such as mcp-forge/python:3.13",
    )?;

    let number = |field, range: RangeInclusive<u64>, unit: &str| {
        let allowed = &format!("{} to {} ({unit})", range.start(), range.end());
        let value = arguments.get(field).unwrap_or(&Value::Null);
        let whole = Whole {
            field,
            range,
            allowed,
        };
        whole.read(value, written.get(field))
    };
    request.timeout = number("timeout", 1..=bounds.max_timeout_s, "seconds")?;
    request.cpu_quota = number(
        "cpu_quota",
        MIN_CPU_QUOTA..=bounds.max_cpu_quota,
        "µs of CPU time per 100 ms",
    )?;
    let background = match arguments.get("background") {
        None | Some(Value::Null) => false,
        Some(Value::Bool(background)) => *background,
        Some(other) => {
            return Err(Fault::invalid(
                "background",
                format!(
                    "`background` must be true or false, not {}",
                    describe(other)
                ),
                "send it without quotes, or leave it out to wait for the result".to_owned(),
                "true or false",
            ));
        }
    };
    let files = input_files::parse(arguments.remove("files").unwrap_or_default())?;
    Ok(Call {
        request,
        files,
        background,
    })
}

fn check_name(tool: &str, name: &str, value: &Value) -> Result<(), Fault> {
    if BUILT.contains(&name) {
        return Ok(());
    }
    if let Some((_, instead)) = LATER.iter().find(|(later, _)| *later == name) {
        // A client that fills every argument it knows of with null asks for nothing.
        if value.is_null() {
            return Ok(());
        }
        return Err(Fault {
            kind: RefusalKind::Unsupported,
            message: format!("`{name}` is not available in this version of mcp-forge"),
            hint: (*instead).to_owned(),
            field: Some(name.to_owned()),
            allowed: Some(BUILT.join(", ")),
        });
    }
    Err(Fault::unknown(tool, name, nearest(&echo(name)), &BUILT))
}

/// The argument that the client probably meant.
fn nearest(name: &str) -> Option<&'static str> {
    let name = name.to_lowercase();
    let meaning = match name.as_str() {
        "source" | "script" | "program" | "python" | "r" | "command" | "cmd" => Some("code"),
        "input" => Some("stdin"),
        "cpu" | "cpus" => Some("cpu_quota"),
        "ram" => Some("memory"),
        _ => None,
    };
    meaning.or_else(|| {
        BUILT
            .into_iter()
            .map(|built| (strsim::jaro_winkler(&name, built), built))
            .filter(|(likeness, _)| *likeness >= LIKENESS)
            .max_by(|(left, _), (right, _)| left.total_cmp(right))
            .map(|(_, built)| built)
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::settings::ArgumentBounds;

    fn bounds() -> ArgumentBounds {
        ArgumentBounds {
            default_timeout_s: 30,
            max_timeout_s: 300,
            default_memory: "512m".to_owned(),
            max_memory: "4g".to_owned(),
            default_cpu_quota: 100_000,
            max_cpu_quota: 400_000,
            max_code_bytes: 1_000_000,
            max_stdin_bytes: 1_000_000,
            max_files: 10,
            max_file_bytes: 1_000_000,
        }
    }

    fn parsed(arguments: Value) -> Result<ExecutionRequest, Fault> {
        parsed_call(arguments).map(|call| call.request)
    }

    fn parsed_call(arguments: Value) -> Result<Call, Fault> {
        let Value::Object(arguments) = arguments else {
            panic!("not an object: {arguments}")
        };
        let written = WrittenNumbers::default();
        parse(
            "execute_python",
            Language::Python,
            &bounds(),
            arguments,
            &written,
        )
    }

    #[test]
    fn everything_that_is_built_is_taken() {
        let request = parsed(json!({
            "code": "print(1)", "timeout": 5.0, "memory": "1g", "cpu_quota": 50_000, "stdin": "in",
        }))
        .unwrap();
        let mut expected = ExecutionRequest::new(Language::Python, "print(1)");
        expected.timeout = Some(5);
        expected.memory = Some("1g".to_owned());
        expected.cpu_quota = Some(50_000);
        expected.stdin = Some("in".to_owned());
        assert_eq!(request, expected);
    }

    #[test]
    fn null_is_absent_also_for_what_is_not_built() {
        let request = parsed(json!({
            "code": "1", "timeout": null, "memory": null, "cpu_quota": null, "stdin": null,
            "session_id": null, "files": null,
        }))
        .unwrap();
        assert_eq!(request, ExecutionRequest::new(Language::Python, "1"));
    }

    #[test]
    fn an_empty_program_is_the_domains_business() {
        assert_eq!(parsed(json!({"code": ""})).unwrap().code, "");
    }

    #[test]
    fn code_is_required() {
        for arguments in [json!({}), json!({"code": null}), json!({"timeout": 3})] {
            let fault = parsed(arguments).unwrap_err();
            assert_eq!(fault.kind, RefusalKind::InvalidArgument);
            assert_eq!(fault.message, "`code` is missing");
            assert_eq!(fault.field.as_deref(), Some("code"));
        }
        let fault = parsed(json!({"code": ["print(1)"]})).unwrap_err();
        assert_eq!(
            fault.message,
            "`code` must be a string, not an array of 1 items"
        );
    }

    #[test]
    fn unknown_names_get_a_suggestion_or_none() {
        for (name, hint) in [
            ("timeuot", "did you mean `timeout`?"),
            ("timeout_seconds", "did you mean `timeout`?"),
            ("cpuQuota", "did you mean `cpu_quota`?"),
            ("memory_limit", "did you mean `memory`?"),
            ("CODE", "did you mean `code`?"),
            ("script", "did you mean `code`?"),
            ("colour", "leave `colour` out"),
            ("", "leave `` out"),
        ] {
            let fault = parsed(json!({"code": "1", name: 1})).unwrap_err();
            assert_eq!(fault.hint, hint, "{name}");
            assert_eq!(fault.kind, RefusalKind::InvalidArgument);
            assert_eq!(fault.allowed, Some(BUILT.join(", ")));
        }
    }

    #[test]
    fn files_and_background_are_taken() {
        let call = parsed_call(json!({
            "code": "1", "files": [{"path": "a", "text": ""}], "background": true,
        }))
        .unwrap();
        assert!(call.background);
        assert_eq!(call.files.len(), 1);
        let fault = parsed_call(json!({"code": "1", "background": "yes"})).unwrap_err();
        assert_eq!(fault.field.as_deref(), Some("background"));
        assert!(!parsed_call(json!({"code": "1"})).unwrap().background);
    }

    #[test]
    fn arguments_of_later_versions_are_unsupported() {
        for (name, _) in LATER {
            let fault = parsed(json!({"code": "1", name: "x"})).unwrap_err();
            assert_eq!(fault.kind, RefusalKind::Unsupported, "{name}");
            assert_eq!(fault.field.as_deref(), Some(name));
            assert!(!fault.hint.is_empty());
        }
    }

    #[test]
    fn the_same_fault_is_told_each_time() {
        let fault = parsed(json!({"zz": 1, "aa": 1, "timeout": "x"})).unwrap_err();
        assert_eq!(fault.message, "`aa` is not an argument of execute_python");
    }

    #[test]
    fn a_hostile_name_is_not_repeated_in_full() {
        let fault =
            parsed(json!({"\u{1b}[2J\u{202e}".to_owned() + &"n".repeat(100_000): 1})).unwrap_err();
        assert!(fault.message.len() < 200);
        assert!(!fault.message.contains(['\u{1b}', '\u{202e}']));
        assert!(fault.field.unwrap().len() < 100);
    }

    fn any_value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<f64>().prop_map(Value::from),
            ".*".prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 16, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::btree_map(".*", inner, 0..4)
                    .prop_map(|members| Value::Object(members.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn no_input_panics_and_every_fault_is_short(
            arguments in prop::collection::btree_map(
                prop_oneof![prop::sample::select(BUILT.to_vec()).prop_map(String::from), ".*"],
                any_value(),
                0..4,
            ),
        ) {
            if let Err(fault) = parsed(Value::Object(arguments.into_iter().collect())) {
                prop_assert!(fault.message.chars().count() < 300);
                prop_assert!(!fault.hint.is_empty());
            }
        }
    }
}
