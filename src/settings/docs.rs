//! What the settings are, for people and for editors: made from the table that reads them.

use mcp_forge_domain::ExecutionPolicy;
use serde_json::{Map, Value, json};

use super::{Form, LIMITS, Limit, OTHERS, Other};

/// One setting as the documentation has it.
pub(super) struct Row {
    pub(super) key: &'static str,
    pub(super) default: String,
    pub(super) allowed: String,
    pub(super) about: &'static str,
    form: Form,
}

/// Every setting, in the order of the example file.
pub(super) fn table() -> Vec<Row> {
    let defaults = ExecutionPolicy::default();
    let limit = |limit: &Limit| Row {
        key: limit.key,
        default: limit.form.write((limit.get)(&defaults)),
        allowed: range_of(limit),
        about: limit.about,
        form: limit.form,
    };
    let other = |other: &Other| Row {
        key: other.key,
        default: other.default.unwrap_or_default().to_owned(),
        allowed: other.form.allowed(),
        about: other.about,
        form: other.form,
    };
    let (first, rest) = OTHERS.split_at(1);
    let (first, rest) = (first.iter().map(other), rest.iter().map(other));
    first.chain(LIMITS.iter().map(limit)).chain(rest).collect()
}

/// What the policy says to a value outside of every range.
fn range_of(limit: &Limit) -> String {
    let mut policy = ExecutionPolicy::default();
    (limit.put)(&mut policy, limit.form.outside());
    let faults = policy.check().err().map_or(Vec::new(), |faults| faults.0);
    let of_it = faults.into_iter().find(|fault| fault.field == limit.field);
    of_it.map_or(String::new(), |fault| fault.allowed)
}

/// The JSON Schema (2020-12) of the configuration file.
pub(crate) fn schema() -> Value {
    let mut sections = Map::new();
    for row in table() {
        let Some((section, name)) = row.key.split_once('.') else {
            continue;
        };
        let section = sections.entry(section).or_insert_with(
            || json!({"type": ["object", "null"], "additionalProperties": false, "properties": {}}),
        );
        section["properties"][name] = property(&row);
    }
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Configuration of mcp-forge",
        "type": ["object", "null"],
        "additionalProperties": false,
        "properties": sections,
        "$defs": {
            "variable": {
                "description": "A value from the environment",
                "type": "string",
                "pattern": "\\$\\{[A-Za-z_][A-Za-z0-9_]*(:-.*)?\\}"
            }
        }
    })
}

fn property(row: &Row) -> Value {
    let form = match row.form {
        Form::Number | Form::NumberIn(..) => {
            let mut form = json!({"type": "integer"});
            let words: Vec<&str> = row.allowed.split(' ').collect();
            if let [least, "to", most, ..] = words.as_slice() {
                form["minimum"] = least.parse::<u64>().ok().into();
                form["maximum"] = most.parse::<u64>().ok().into();
            }
            form
        }
        Form::Size | Form::SizeIn(..) => json!({
            "type": ["string", "integer"],
            "pattern": "^[0-9]+(\\.[0-9]+)?([kKmMgGtT][iI]?)?[bB]?$"
        }),
        Form::Flag => json!({"type": "boolean"}),
        Form::Path => json!({"type": "string", "pattern": "^/"}),
        Form::Choice(choices) => json!({"enum": choices}),
        Form::NumberOrAll(most) => json!({"anyOf": [
            {"type": "integer", "minimum": 1, "maximum": most},
            {"const": "all"}
        ]}),
    };
    let mut property = json!({
        "description": format!("{}. Must be {}.", row.about, row.allowed),
        "anyOf": [form, {"type": "null"}, {"$ref": "#/$defs/variable"}],
    });
    if !row.default.is_empty() {
        property["default"] = row.default.parse::<u64>().map_or_else(
            |_| match row.default.as_str() {
                "true" => true.into(),
                "false" => false.into(),
                text => text.into(),
            },
            Value::from,
        );
    }
    property
}
