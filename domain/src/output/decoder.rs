//! Bytes to text, piece by piece, with the same result as decoding everything at once. It keeps
//! at most the three bytes of an unfinished character.

/// What stands for bytes that are no UTF-8.
const REPLACEMENT: &str = "\u{fffd}";

#[derive(Debug, Default)]
pub(super) struct Decoder {
    unfinished: Vec<u8>,
    replaced: bool,
}

impl Decoder {
    /// Decodes the next bytes and hands the text out in pieces that are never empty.
    pub(super) fn push(&mut self, bytes: &[u8], take: impl FnMut(&str)) {
        if self.unfinished.is_empty() {
            return self.decode(bytes, take);
        }
        let mut joined = std::mem::take(&mut self.unfinished);
        joined.extend_from_slice(bytes);
        self.decode(&joined, take);
    }

    /// The stream is over: an unfinished character becomes one replacement.
    pub(super) fn finish(&mut self, mut take: impl FnMut(&str)) {
        if !self.unfinished.is_empty() {
            self.unfinished.clear();
            self.replaced = true;
            take(REPLACEMENT);
        }
    }

    /// Whether something was replaced.
    pub(super) fn replaced(&self) -> bool {
        self.replaced
    }

    fn decode(&mut self, bytes: &[u8], mut take: impl FnMut(&str)) {
        let mut seen = 0;
        for chunk in bytes.utf8_chunks() {
            if !chunk.valid().is_empty() {
                take(chunk.valid());
            }
            let invalid = chunk.invalid();
            seen += chunk.valid().len() + invalid.len();
            if invalid.is_empty() {
                continue;
            }
            let cut_short = seen == bytes.len()
                && std::str::from_utf8(invalid).is_err_and(|error| error.error_len().is_none());
            if cut_short {
                self.unfinished.extend_from_slice(invalid);
            } else {
                self.replaced = true;
                take(REPLACEMENT);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn decode(chunks: &[&[u8]]) -> (String, bool) {
        let mut decoder = Decoder::default();
        let mut text = String::new();
        for chunk in chunks {
            decoder.push(chunk, |piece| text.push_str(piece));
        }
        decoder.finish(|piece| text.push_str(piece));
        (text, decoder.replaced())
    }

    #[test]
    fn characters_split_over_writes_are_joined() {
        assert_eq!(decode(&[b"\xe2", b"\x82", b"\xac"]), ("€".into(), false));
        assert_eq!(
            decode(&[b"a\xf0\x9f", b"\x98\x80b"]),
            ("a😀b".into(), false)
        );
        assert_eq!(
            decode(&[b"\xf0", b"\x9f", b"", b"\x98", b"\x80\xf0\x9f", b"\x98\x80"]),
            ("😀😀".into(), false)
        );
    }

    #[test]
    fn what_is_no_utf8_is_replaced_and_told() {
        assert_eq!(decode(&[b"a\xffb"]), ("a\u{fffd}b".into(), true));
        assert_eq!(decode(&[b"\xe2\x82"]), ("\u{fffd}".into(), true));
        assert_eq!(decode(&[b"\xe2", b"A"]), ("\u{fffd}A".into(), true));
        assert_eq!(
            decode(&[b"\xed\xa0", b"\x80"]),
            ("\u{fffd}".repeat(3), true)
        );
        // A real replacement character is not a replaced one.
        assert_eq!(decode(&["\u{fffd}".as_bytes()]), ("\u{fffd}".into(), false));
    }

    /// Bytes with many beginnings and ends of characters.
    fn tricky() -> impl Strategy<Value = Vec<u8>> {
        let byte = prop_oneof![
            Just(b'a'),
            Just(0xe2),
            Just(0x82),
            Just(0xac),
            Just(0xf0),
            Just(0x9f),
            Just(0xed),
            Just(0xff),
            any::<u8>(),
        ];
        proptest::collection::vec(byte, 0..40)
    }

    proptest! {
        #[test]
        fn chunking_makes_no_difference(bytes in tricky(), sizes in proptest::collection::vec(1..6_usize, 40)) {
            let mut chunks = Vec::new();
            let mut rest = bytes.as_slice();
            for size in sizes {
                let (chunk, after) = rest.split_at(size.min(rest.len()));
                chunks.push(chunk);
                rest = after;
            }
            chunks.push(rest);
            let (text, replaced) = decode(&chunks);
            prop_assert_eq!(&text, &String::from_utf8_lossy(&bytes));
            prop_assert_eq!(replaced, std::str::from_utf8(&bytes).is_err());
        }
    }
}
