//! The reviewed list of system calls (`images/seccomp/default.toml`) in the form that engines take:
//! the JSON of moby's `profiles/seccomp`. The list is checked by the tests of the embedded runtime.

use std::env::consts::ARCH;

use serde::Deserialize;
use serde_json::{Value, json};

const LIST: &str = include_str!("../../../images/seccomp/default.toml");

/// What is needed of the list.
#[derive(Deserialize)]
struct List {
    default: Answer,
    allow: Vec<Group>,
    conditional: Vec<Conditional>,
    errno: Vec<Errno>,
}

#[derive(Deserialize)]
struct Answer {
    errno: u32,
}

#[derive(Deserialize)]
struct Group {
    names: Vec<String>,
    arch: Option<String>,
}

#[derive(Deserialize)]
struct Conditional {
    name: String,
    when: Vec<Condition>,
}

#[derive(Deserialize)]
struct Condition {
    arg: u32,
    mask: u64,
    equals: u64,
}

#[derive(Deserialize)]
struct Errno {
    names: Vec<String>,
    errno: u32,
}

/// The profile.
///
/// # Errors
///
/// A list that cannot be read, which a test excludes.
pub fn profile() -> Result<String, toml::de::Error> {
    let list: List = toml::from_str(LIST)?;
    let here = |group: &&Group| group.arch.as_deref().is_none_or(|arch| arch == ARCH);
    let allowed: Vec<&str> = list
        .allow
        .iter()
        .filter(here)
        .flat_map(|group| group.names.iter().map(String::as_str))
        .collect();
    let mut rules = vec![json!({"names": allowed, "action": "SCMP_ACT_ALLOW"})];
    rules.extend(list.conditional.iter().map(|rule| {
        let conditions: Vec<Value> = rule
            .when
            .iter()
            .map(|condition| {
                json!({
                    "index": condition.arg,
                    "value": condition.mask,
                    "valueTwo": condition.equals,
                    "op": "SCMP_CMP_MASKED_EQ",
                })
            })
            .collect();
        json!({"names": [rule.name], "action": "SCMP_ACT_ALLOW", "args": conditions})
    }));
    rules.extend(list.errno.iter().map(
        |rule| json!({"names": rule.names, "action": "SCMP_ACT_ERRNO", "errnoRet": rule.errno}),
    ));
    let architecture = match ARCH {
        "aarch64" => "SCMP_ARCH_AARCH64",
        _ => "SCMP_ARCH_X86_64",
    };
    let profile = json!({
        "defaultAction": "SCMP_ACT_ERRNO",
        "defaultErrnoRet": list.default.errno,
        "architectures": [architecture],
        "syscalls": rules,
    });
    Ok(profile.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_is_a_profile() {
        let profile: Value = serde_json::from_str(&profile().unwrap()).unwrap();
        assert_eq!(profile["defaultAction"], "SCMP_ACT_ERRNO");
        let rules = profile["syscalls"].as_array().unwrap();
        let allowed = rules[0]["names"].as_array().unwrap();
        assert!(allowed.iter().any(|name| name == "openat"));
        assert!(
            allowed
                .iter()
                .all(|name| name != "ptrace" && name != "keyctl" && name != "clone")
        );
        let clone = rules
            .iter()
            .find(|rule| rule["names"][0] == "clone")
            .unwrap();
        assert_eq!(clone["args"][0]["op"], "SCMP_CMP_MASKED_EQ");
        let clone3 = rules
            .iter()
            .find(|rule| rule["names"][0] == "clone3")
            .unwrap();
        assert_eq!(clone3["errnoRet"], 38);
    }
}
