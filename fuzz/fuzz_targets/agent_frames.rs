//! Bytes from a hostile sandbox: cut into frames and decoded, whatever the chunks.
#![no_main]

use libfuzzer_sys::fuzz_target;
use mcp_forge_agent::{Decoder, FromAgent, MAX_FROM_AGENT, ToAgent};

fuzz_target!(|data: &[u8]| {
    let Some((&chunk, bytes)) = data.split_first() else {
        return;
    };
    let mut decoder = Decoder::new(MAX_FROM_AGENT);
    for part in bytes.chunks(usize::from(chunk).max(1)) {
        decoder.push(part);
        loop {
            match decoder.next_frame() {
                Ok(Some(frame)) => {
                    // What decodes must survive its own encoding; text is replaced where it is
                    // not UTF-8, and may grow by that.
                    if let Ok(message) = FromAgent::decode(frame)
                        && !matches!(message, FromAgent::Hello { .. } | FromAgent::Failed(_))
                    {
                        let mut again = Vec::new();
                        message.encode(&mut again);
                        assert_eq!(FromAgent::decode(&again[4..]), Ok(message));
                    }
                    let _ = ToAgent::decode(frame);
                }
                Ok(None) => break,
                Err(_) => return,
            }
        }
    }
});
