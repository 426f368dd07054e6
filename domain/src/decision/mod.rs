//! Whether a sandbox may be made as it is proposed: pure functions over parsed values.
//!
//! Every rule that has something to say gives a [`Decision`]; the strictest wins. The barriers are
//! rules that no policy turns off. An operator's rule can only make the answer stricter: what may
//! be at all is in the lists of the policy, which are empty unless filled.

mod image;
mod proposal;
mod table;

use mcp_forge_ports::vocabulary::Language;
use serde::{Deserialize, Serialize};

pub use image::{ImagePattern, ImageReference, ImageReferenceError};
pub use proposal::{Action, Mount, Network, Proposal, Shared, SourceKind};
pub use table::Table;
use table::tables;

/// Most rules of a policy.
pub const MAX_RULES: usize = 1000;

/// Longest name and justification of a rule, characters.
pub const MAX_TEXT: usize = 1000;

/// The answer, from most to least permissive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// It may be.
    Allow,
    /// A person has to agree.
    Prompt,
    /// It may not be.
    Forbid,
}

/// What one rule says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Decision {
    /// The answer.
    pub verdict: Verdict,
    /// The rule, by its name.
    pub rule: String,
    /// Why.
    pub justification: String,
}

/// The answer to a proposal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Evaluation {
    /// The strictest of the decisions.
    pub verdict: Verdict,
    /// All of them, the strictest first.
    pub decisions: Vec<Decision>,
}

impl Evaluation {
    fn of(mut decisions: Vec<Decision>) -> Self {
        // Stable: among equals those of the barriers come first.
        decisions.sort_by_key(|decision| std::cmp::Reverse(decision.verdict));
        let strictest = decisions.first().map(|decision| decision.verdict);
        Self {
            verdict: strictest.unwrap_or(Verdict::Forbid),
            decisions,
        }
    }
}

/// What the operator allows. By default: the host presentation, no image, no network, no mount.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SandboxPolicy {
    /// Patterns of the images that may be used; an empty list allows none.
    pub images: Vec<String>,
    /// Whether sandboxes may reach the network at all.
    pub egress: bool,
    /// Absolute paths below which mounts may be.
    pub volume_roots: Vec<String>,
    /// Rules that make it stricter.
    #[serde(deserialize_with = "tables")]
    pub rules: Vec<Rule>,
}

/// A rule of the operator. It speaks of a proposal that meets all its conditions.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// Its name.
    pub name: String,
    /// A pattern of images.
    pub image: Option<String>,
    /// A language.
    pub language: Option<String>,
    /// A network.
    pub network: Option<Network>,
    /// What it says.
    pub decision: Verdict,
    /// Why.
    pub justification: String,
    /// Proposals that it must speak of. Looked at when the policy is loaded.
    #[serde(default, rename = "match", deserialize_with = "tables")]
    pub matching: Vec<Proposal>,
    /// Proposals that it must not speak of.
    #[serde(default, deserialize_with = "tables")]
    pub not_match: Vec<Proposal>,
}

/// A policy that makes no sense; one line for each fault.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}", .0.join("\n"))]
pub struct SandboxPolicyFaults(pub Vec<String>);

/// A policy whose patterns are parsed and whose examples hold.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CheckedPolicy {
    images: Vec<ImagePattern>,
    egress: bool,
    volume_roots: Vec<String>,
    rules: Vec<CheckedRule>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct CheckedRule {
    name: String,
    image: Option<ImagePattern>,
    language: Option<Language>,
    network: Option<Network>,
    decision: Verdict,
    justification: String,
}

impl CheckedRule {
    fn speaks_of(&self, proposal: &Proposal) -> bool {
        let image = match (&self.image, &proposal.image) {
            (None, _) => true,
            (Some(_), None) => false,
            (Some(pattern), Some(image)) => {
                ImageReference::parse(image).is_ok_and(|image| pattern.matches(&image))
            }
        };
        image
            && self
                .language
                .is_none_or(|language| proposal.language == language.as_str())
            && self
                .network
                .is_none_or(|network| proposal.network == network)
    }
}

impl CheckedPolicy {
    /// Checks every pattern, rule and example.
    ///
    /// # Errors
    ///
    /// Everything that is wrong.
    pub fn new(policy: &SandboxPolicy) -> Result<Self, SandboxPolicyFaults> {
        let mut faults = Vec::new();
        let mut images = Vec::new();
        for pattern in &policy.images {
            match ImagePattern::parse(pattern) {
                Ok(pattern) => images.push(pattern),
                Err(error) => faults.push(format!("images: {error}")),
            }
        }
        for root in &policy.volume_roots {
            if let Err(why) = proposal::check_root(root) {
                faults.push(format!("volume_roots: {root:?} {why}"));
            }
        }
        if policy.rules.len() > MAX_RULES {
            faults.push(format!(
                "rules: {} of them, at most {MAX_RULES}",
                policy.rules.len()
            ));
        }
        let mut rules: Vec<CheckedRule> = Vec::new();
        for rule in policy.rules.iter().take(MAX_RULES) {
            match check_rule(rule) {
                Ok(checked) => {
                    if rules.iter().any(|other| other.name == checked.name) {
                        faults.push(format!("rule {:?}: there are two of this name", rule.name));
                    }
                    rules.push(checked);
                }
                Err(told) => {
                    faults.extend(
                        told.into_iter()
                            .map(|what| format!("rule {:?}: {what}", rule.name)),
                    );
                }
            }
        }
        if !faults.is_empty() {
            return Err(SandboxPolicyFaults(faults));
        }
        Ok(Self {
            images,
            egress: policy.egress,
            volume_roots: policy.volume_roots.clone(),
            rules,
        })
    }

    /// The answer to a proposal, with what every rule says that has something to say.
    pub fn evaluate(&self, proposal: &Proposal) -> Evaluation {
        let mut decisions = proposal.barriers();
        decisions.push(self.image(proposal));
        decisions.extend(self.network(proposal));
        let roots = &self.volume_roots;
        decisions.extend(
            proposal
                .mounts
                .iter()
                .map(|mount| mount.decide(proposal, roots)),
        );
        let speaking = self.rules.iter().filter(|rule| rule.speaks_of(proposal));
        decisions.extend(speaking.map(|rule| Decision {
            verdict: rule.decision,
            rule: rule.name.clone(),
            justification: rule.justification.clone(),
        }));
        Evaluation::of(decisions)
    }

    fn image(&self, proposal: &Proposal) -> Decision {
        let decide = |verdict, justification| Decision {
            verdict,
            rule: "image".to_owned(),
            justification,
        };
        let Some(image) = &proposal.image else {
            let why = "no image: the host's own programs, read-only".to_owned();
            return decide(Verdict::Allow, why);
        };
        let parsed = match ImageReference::parse(image) {
            Ok(parsed) => parsed,
            Err(error) => return decide(Verdict::Forbid, error.to_string()),
        };
        match self.images.iter().find(|pattern| pattern.matches(&parsed)) {
            Some(pattern) => decide(Verdict::Allow, format!("{parsed} is of {pattern}")),
            None => decide(
                Verdict::Forbid,
                format!("{parsed} is of no pattern in `images`"),
            ),
        }
    }

    fn network(&self, proposal: &Proposal) -> Option<Decision> {
        let (verdict, why) = match proposal.network {
            Network::None => return None,
            Network::Egress if self.egress => (Verdict::Allow, "`egress` is true"),
            Network::Egress => (Verdict::Forbid, "`egress` is false"),
            Network::Host => (Verdict::Forbid, "the host's network is never shared"),
        };
        Some(Decision {
            verdict,
            rule: "network".to_owned(),
            justification: why.to_owned(),
        })
    }
}

fn check_rule(rule: &Rule) -> Result<CheckedRule, Vec<String>> {
    let mut faults = Vec::new();
    let image = rule.image.as_deref().map(ImagePattern::parse).transpose();
    let image = image.unwrap_or_else(|error| {
        faults.push(error.to_string());
        None
    });
    let language = rule.language.as_deref().and_then(|name| {
        let language = [Language::Python, Language::R]
            .into_iter()
            .find(|language| language.as_str() == name);
        if language.is_none() {
            faults.push(format!("language {name:?} must be python or r"));
        }
        language
    });
    for (field, text) in [("name", &rule.name), ("justification", &rule.justification)] {
        if text.trim().is_empty() {
            faults.push(format!("it needs a {field}"));
        }
        // They are shown to people, in logs and terminals.
        if text.chars().any(char::is_control) || text.chars().count() > MAX_TEXT {
            faults.push(format!(
                "its {field} must be one line of at most {MAX_TEXT} characters"
            ));
        }
    }
    if !faults.is_empty() {
        return Err(faults);
    }
    let checked = CheckedRule {
        name: rule.name.clone(),
        image,
        language,
        network: rule.network,
        decision: rule.decision,
        justification: rule.justification.clone(),
    };
    for (examples, expected, said) in [
        (
            &rule.matching,
            true,
            "it does not speak of its example in `match`",
        ),
        (
            &rule.not_match,
            false,
            "it speaks of its example in `not_match`",
        ),
    ] {
        for (number, example) in examples.iter().enumerate() {
            if checked.speaks_of(example) != expected {
                faults.push(format!("{said}, number {}", number + 1));
            }
        }
    }
    if faults.is_empty() {
        Ok(checked)
    } else {
        Err(faults)
    }
}

#[cfg(test)]
mod tests;
