//! Text of an operator's policy, of a proposal and of a reference: none panics, a rule never makes
//! the answer laxer, and no barrier falls.
#![no_main]

use libfuzzer_sys::fuzz_target;
use mcp_forge_domain::decision::{
    CheckedPolicy, ImagePattern, ImageReference, Proposal, SandboxPolicy, Verdict,
};
use mcp_forge_domain::limits::{format_byte_size, parse_byte_size};

fuzz_target!(|text: &str| {
    if let Ok(bytes) = parse_byte_size(text) {
        assert!(bytes > 0);
        assert!(parse_byte_size(&format_byte_size(bytes)).is_ok());
    }
    let image = ImageReference::parse(text);
    if let Ok(image) = &image {
        assert_eq!(
            ImageReference::parse(&image.to_string()).as_ref(),
            Ok(image)
        );
        assert!(ImagePattern::parse(&image.to_string()).is_ok_and(|own| own.matches(image)));
    }
    if let (Ok(pattern), Ok(image)) = (ImagePattern::parse(text), ImageReference::parse("a/b:c")) {
        let _ = pattern.matches(&image);
    }
    // The first line may be a proposal, the rest a policy.
    let (first, rest) = text.split_once('\n').unwrap_or((text, ""));
    let proposal: Proposal = serde_json::from_str(first).unwrap_or_default();
    for text in [text, rest] {
        let Ok(policy) = toml::from_str::<SandboxPolicy>(text) else {
            continue;
        };
        let Ok(checked) = CheckedPolicy::new(&policy) else {
            continue;
        };
        let verdict = checked.evaluate(&proposal).verdict;
        let without = SandboxPolicy {
            rules: Vec::new(),
            ..policy
        };
        if let Ok(without) = CheckedPolicy::new(&without) {
            assert!(verdict >= without.evaluate(&proposal).verdict);
        }
        if proposal.privileged || proposal.uid == 0 || !proposal.capabilities.is_empty() {
            assert_eq!(verdict, Verdict::Forbid);
        }
    }
});
