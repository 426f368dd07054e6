use mcp_forge_ports::vocabulary::OutputStream::{Stderr, Stdout};
use proptest::prelude::*;
use serde_json::json;

use super::*;

fn collector(stdout: usize, stderr: usize) -> OutputCollector {
    OutputCollector::new(OutputLimits { stdout, stderr })
}

fn text(stream: OutputStream, text: &str) -> OutputBlock {
    OutputBlock::Stream {
        stream,
        text: text.to_owned(),
    }
}

fn joined(blocks: &[OutputBlock], wanted: OutputStream) -> String {
    blocks
        .iter()
        .filter_map(|block| match block {
            OutputBlock::Stream { stream, text } if *stream == wanted => Some(text.as_str()),
            _ => None,
        })
        .collect()
}

#[test]
fn blocks_come_in_order_and_text_is_joined() {
    let mut output = collector(100, 100);
    assert!(output.is_empty());
    output.write(Stdout, b"a");
    output.write(Stdout, b"b\n");
    output.write(Stderr, b"warn\n");
    let value = RunnerReport::Value {
        json: Some(json!(1)),
        repr: "1".into(),
    };
    assert!(output.report(9, Some(value)).block.is_some());
    output.write(Stdout, b"c");
    let output = output.finish();
    assert_eq!(
        output.blocks,
        [
            text(Stdout, "ab\n"),
            text(Stderr, "warn\n"),
            OutputBlock::Value {
                json: Some(json!(1)),
                repr: "1".into()
            },
            text(Stdout, "c"),
        ]
    );
    assert_eq!(output.stdout.text, "ab\nc");
    assert_eq!(output.stderr.text, "warn\n");
    let value = output.value.unwrap();
    assert_eq!((value.json, value.repr), (Some(json!(1)), "1".into()));
    assert_eq!(output.error, None);
}

#[test]
fn nothing_gives_nothing() {
    let output = collector(10, 10).finish();
    assert_eq!(output.stdout.text, "");
    assert!(output.blocks.is_empty());
    // SHA-256 of no bytes.
    assert!(output.stdout.sha256.starts_with("e3b0c44298fc1c14"));
}

#[test]
fn a_character_split_around_the_other_stream_is_whole() {
    let mut output = collector(100, 100);
    output.write(Stdout, b"\xe2\x82");
    output.write(Stderr, b"e");
    output.write(Stdout, b"\xac");
    let output = output.finish();
    assert_eq!(output.stdout.text, "€");
    assert!(!output.stdout.not_utf8);
    assert_eq!(output.blocks, [text(Stderr, "e"), text(Stdout, "€")]);
}

#[test]
fn an_unfinished_character_is_told_at_the_end() {
    let mut output = collector(100, 100);
    output.write(Stdout, b"a\xe2\x82");
    let output = output.finish();
    assert_eq!(output.stdout.text, "a\u{fffd}");
    assert!(output.stdout.not_utf8);
    assert!(!output.stderr.not_utf8);
    assert_eq!(output.stdout.bytes, 3);
    assert_eq!(output.blocks, [text(Stdout, "a\u{fffd}")]);
}

#[test]
fn cuts_are_the_same_in_text_and_blocks() {
    let mut output = collector(8, 100);
    output.write(Stdout, b"01");
    output.write(Stderr, b"e1");
    output.write(Stdout, b"23456789");
    output.write(Stderr, b"e2");
    output.write(Stdout, b"abcdef");
    let output = output.finish();
    assert!(output.stdout.truncated);
    assert!(!output.stderr.truncated);
    assert_eq!(output.stdout.text, "0123\n… [8 bytes omitted] …\ncdef");
    assert_eq!(
        output.blocks,
        [
            text(Stdout, "01"),
            text(Stderr, "e1"),
            text(Stdout, "23\n… [8 bytes omitted] …\n"),
            text(Stderr, "e2"),
            text(Stdout, "cdef"),
        ]
    );
}

#[test]
fn a_flood_of_tiny_alternating_writes_makes_few_blocks() {
    let mut output = collector(1 << 20, 1 << 20);
    for _ in 0..100_000 {
        output.write(Stdout, b"o");
        output.write(Stderr, b"e");
    }
    assert_eq!(output.received(), 200_000);
    let output = output.finish();
    assert!(output.blocks.len() <= 2 * order::ORDERED + 2);
    assert_eq!(output.stdout.text, "o".repeat(100_000));
    assert_eq!(joined(&output.blocks, Stdout), output.stdout.text);
    assert_eq!(joined(&output.blocks, Stderr), output.stderr.text);
    // The first and the last writes keep their order.
    assert_eq!(output.blocks[..2], [text(Stdout, "o"), text(Stderr, "e")]);
    assert_eq!(output.blocks.last(), Some(&text(Stderr, "e")));
}

#[test]
fn a_flood_of_reports_and_text_stays_bounded() {
    let mut output = collector(1000, 1000);
    for at in 0..50_000 {
        output.write(Stdout, b"0123456789");
        let value = RunnerReport::Value {
            json: Some(json!(at)),
            repr: "x".repeat(100),
        };
        output.report(100, Some(value));
    }
    let output = output.finish();
    let reports = output
        .blocks
        .iter()
        .filter(|block| matches!(block, OutputBlock::Value { .. }))
        .count();
    assert_eq!(reports, report::MAX_BLOCKS);
    assert_eq!(joined(&output.blocks, Stdout), output.stdout.text);
    assert!(output.stdout.text.len() < 1100);
    assert_eq!(output.value.unwrap().json, Some(json!(49_999)));
}

fn writes() -> impl Strategy<Value = Vec<(bool, Vec<u8>)>> {
    let byte = prop_oneof![
        Just(b'a'),
        Just(b'\n'),
        Just(0xe2),
        Just(0x82),
        Just(0xac),
        Just(0xf0),
        Just(0x9f),
        Just(0x98),
        Just(0x80),
        any::<u8>()
    ];
    let write = (any::<bool>(), proptest::collection::vec(byte, 0..12));
    proptest::collection::vec(write, 0..40)
}

proptest! {
    #[test]
    fn streams_are_lossy_decodings_within_their_limits(writes in writes(), limit in 0..200_usize) {
        let mut output = collector(limit, 1 << 20);
        let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
        for (to_stdout, bytes) in &writes {
            let (stream, whole) = if *to_stdout { (Stdout, &mut stdout) } else { (Stderr, &mut stderr) };
            output.write(stream, bytes);
            whole.extend_from_slice(bytes);
        }
        let output = output.finish();

        prop_assert!(!output.stderr.truncated);
        if writes.iter().all(|(to_stdout, _)| *to_stdout) {
            let whole = terminal::shown(&String::from_utf8_lossy(&stdout));
            prop_assert_eq!(output.stdout.truncated, whole.len() > limit);
        }
        // Without anything that a terminal obeys, the text is what was written.
        let special = |byte: &u8| matches!(byte, b'\r' | 7 | 8 | 0x1b);
        prop_assume!(!stdout.iter().chain(&stderr).any(special));
        prop_assert_eq!(&output.stderr.text, &String::from_utf8_lossy(&stderr));
        let whole = String::from_utf8_lossy(&stdout);
        prop_assert_eq!(output.stdout.truncated, whole.len() > limit);
        if output.stdout.truncated {
            let marker = window::marker(whole.len() as u64);
            prop_assert!(output.stdout.text.len() <= limit + marker.len());
        } else {
            prop_assert_eq!(&output.stdout.text, &whole);
        }
        for (stream, told, raw) in [(Stdout, &output.stdout, &stdout), (Stderr, &output.stderr, &stderr)] {
            prop_assert_eq!(&joined(&output.blocks, stream), &told.text);
            prop_assert_eq!(told.bytes, raw.len() as u64);
            prop_assert_eq!(&told.sha256, &sha256_hex(raw));
            prop_assert_eq!(told.not_utf8, std::str::from_utf8(raw).is_err());
        }
        for pair in output.blocks.windows(2) {
            if let [OutputBlock::Stream { stream: before, .. }, OutputBlock::Stream { stream: after, .. }] = pair {
                prop_assert_ne!(before, after);
            }
        }
    }
}

#[test]
fn messages_stand_in_standard_error_and_as_blocks() {
    let mut output = collector(100, 100);
    output.write(Stdout, b"10%\r20%");
    let message = RunnerReport::Message {
        text: "note\n".into(),
    };
    let taken = output.report(9, Some(message));
    assert!(taken.block.is_some());
    assert_eq!(taken.spoken.as_deref(), Some("note\n"));
    output.write(Stderr, b"err\n");
    output.write(Stdout, b"30%");
    let output = output.finish();
    assert_eq!(
        output.blocks,
        [
            text(Stdout, "20%"),
            OutputBlock::Message {
                text: "note\n".into()
            },
            text(Stderr, "err\n"),
            text(Stdout, "30%"),
        ]
    );
    assert_eq!(output.stderr.text, "note\nerr\n");
}

#[test]
fn what_is_no_report_counts_and_shows_nothing() {
    let mut output = collector(100, 100);
    assert_eq!(output.report(1000, None), Taken::default());
    assert!(output.received() > 1000);
    assert!(output.finish().blocks.is_empty());
}
