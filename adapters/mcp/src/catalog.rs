//! The tools as clients see them: names, schemas, descriptions, annotations.
//!
//! The list depends on settings only, never on a connection or on an earlier call. No output
//! schema is declared: with one, some clients stop showing the content of a result.

use std::sync::Arc;

use mcp_forge_ports::vocabulary::{Language, MIN_CPU_QUOTA};
use rmcp::model::{JsonObject, Tool, ToolAnnotations};
use serde_json::json;

use crate::settings::{ArgumentBounds, McpSettings};
use crate::value::object;

/// A tool that runs one language.
#[derive(Debug, Clone)]
pub(crate) struct LanguageTool {
    pub(crate) language: Language,
    pub(crate) tool: Tool,
}

/// The tools of these settings, one per language, in a fixed order.
pub(crate) fn tools(settings: &McpSettings) -> Vec<LanguageTool> {
    [Language::Python, Language::R]
        .into_iter()
        .filter(|language| settings.languages.contains(language))
        .filter_map(|language| execute(language, &settings.bounds))
        .collect()
}

/// How a language is presented.
struct Presentation {
    tool: &'static str,
    title: &'static str,
    article: &'static str,
    name: &'static str,
    value: &'static str,
    show: &'static str,
}

fn presentation(language: Language) -> Option<Presentation> {
    match language {
        Language::Python => Some(Presentation {
            tool: "execute_python",
            title: "Run Python",
            article: "a",
            name: "Python 3",
            value: "the value of the last line if that is an expression",
            show: "plt.show()",
        }),
        Language::R => Some(Presentation {
            tool: "execute_r",
            title: "Run R",
            article: "an",
            name: "R",
            value: "the visible value of the last expression",
            show: "without png() and dev.off()",
        }),
        // A language without a tool of its own yet.
        _ => None,
    }
}

fn execute(language: Language, bounds: &ArgumentBounds) -> Option<LanguageTool> {
    let shown = presentation(language)?;
    let description = format!(
        "Runs {article} {name} program in a fresh, isolated sandbox and returns its standard output and \
         standard error, {value}, its plots as pictures, and the error with its traceback if it \
         failed. No variables or processes are kept between calls, so each program must be \
         complete in itself. There is no network, so no package can be installed, and no access to \
         the user's files; only /tmp and the working directory /workspace are writable, and both \
         are empty but for `files`. Files left in /workspace are listed in the result, can be read \
         as resources and given to a later call. Print what you want to see, and show plots \
         ({show}) rather than save them.",
        show = shown.show,
        article = shown.article,
        name = shown.name,
        value = shown.value,
    );
    let annotations = ToolAnnotations::with_title(shown.title)
        .read_only(false)
        .destructive(false)
        .idempotent(false)
        .open_world(false);
    let schema = input_schema(shown.name, bounds);
    let tool = Tool::new(shown.tool, description, Arc::new(schema))
        .with_title(shown.title)
        .with_annotations(annotations);
    Some(LanguageTool { language, tool })
}

fn input_schema(name: &str, bounds: &ArgumentBounds) -> JsonObject {
    let schema = json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "additionalProperties": false,
        "required": ["code"],
        "properties": {
            "code": {
                "type": "string",
                "description": format!(
                    "The complete {name} program, at most {} bytes.",
                    bounds.max_code_bytes
                ),
            },
            "timeout": {
                "type": "integer",
                "minimum": 1,
                "maximum": bounds.max_timeout_s,
                "default": bounds.default_timeout_s,
                "description": format!(
                    "Time limit in seconds of wall-clock time, from 1 to {}; the program is \
                     stopped then and what it printed so far is returned.",
                    bounds.max_timeout_s
                ),
            },
            "memory": {
                "type": "string",
                "default": bounds.default_memory,
                "examples": [bounds.default_memory, bounds.max_memory],
                "description": format!(
                    "Memory limit of all processes of the run together: a number with the unit \
                     k, m or g (powers of 1024), from {} to {}. The program is killed when it \
                     needs more.",
                    ArgumentBounds::min_memory(),
                    bounds.max_memory
                ),
            },
            "cpu_quota": {
                "type": "integer",
                "minimum": MIN_CPU_QUOTA,
                "maximum": bounds.max_cpu_quota,
                "default": bounds.default_cpu_quota,
                "description": format!(
                    "CPU limit in microseconds of CPU time per 100 ms: 100000 is one core, 50000 \
                     half a core; from {MIN_CPU_QUOTA} to {}.",
                    bounds.max_cpu_quota
                ),
            },
            "stdin": {
                "type": "string",
                "description": format!(
                    "Text for the program's standard input, at most {} bytes. Without it, \
                     reading standard input fails at once.",
                    bounds.max_stdin_bytes
                ),
            },
            "custom_image": {
                "type": "string",
                "description": "Reference to an image whose programs to use instead of the host's \
                                own, one that the operator has imported and allows.",
            },
            "files": {
                "type": "array",
                "maxItems": bounds.max_files,
                "description": format!(
                    "Files placed in /workspace before the program starts, at most {} bytes \
                     together. Each has a `path` below /workspace and one of `text`, `base64`, and \
                     `uri` (of a file, picture or log of an earlier result).",
                    bounds.max_file_bytes
                ),
                "items": {
                    "type": "object",
                    "additionalProperties": false,
                    "required": ["path"],
                    "properties": {
                        "path": { "type": "string" },
                        "text": { "type": "string" },
                        "base64": { "type": "string" },
                        "uri": { "type": "string" },
                    },
                },
            },
            "background": {
                "type": "boolean",
                "default": false,
                "description": "Return a run_id at once instead of waiting; get_run gives the \
                                result, cancel_run stops it.",
            },
        },
    });
    object(schema)
}
