//! Byte sizes as people write them: `512m`, `1.5g`, `1024k`, `512MiB`, or plain bytes.
//!
//! Units are powers of 1024 whatever their spelling. This module knows no limits: whether a size
//! is allowed is decided by `limits`.

/// Characters of a refused value that are repeated in a message.
const SHOWN: usize = 40;

/// Longest text that is looked at; nobody writes a size with more characters.
const MAX_LEN: usize = 40;

/// Longest fraction, so that the arithmetic stays within 128 bits.
const MAX_FRACTION: usize = 18;

/// Why a text is no byte size. Each message holds the value, cut to 40 characters.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ByteSizeError {
    /// No number with an optional unit.
    #[error("{value} is not a size")]
    Malformed {
        /// What was written.
        value: String,
    },
    /// Zero, or less than one byte.
    #[error("{value} is zero bytes")]
    Zero {
        /// What was written.
        value: String,
    },
    /// Below zero.
    #[error("{value} is negative")]
    Negative {
        /// What was written.
        value: String,
    },
    /// More than 2^64 - 1 bytes.
    #[error("{value} is larger than any memory")]
    TooLarge {
        /// What was written.
        value: String,
    },
}

/// Parses a size: digits, optionally a fraction, and optionally one of `b`, `k`, `m`, `g`, `t`,
/// where the last four may be followed by `i`, `b` or `ib`, in upper or lower case.
///
/// The result is exact; what remains below one byte is dropped (`1.1k` is 1126).
///
/// # Errors
///
/// [`ByteSizeError`] for zero, negative and too large sizes and for everything else that is not
/// of this form, white space included.
pub fn parse_byte_size(text: &str) -> Result<u64, ByteSizeError> {
    let value = || quoted(text);
    let malformed = || ByteSizeError::Malformed { value: value() };

    if text.starts_with('-') {
        return Err(ByteSizeError::Negative { value: value() });
    }
    if text.len() > MAX_LEN {
        return Err(malformed());
    }
    let unit_at = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(unit_at);
    let scale = scale_of(unit).ok_or_else(malformed)?;
    let (whole, fraction) = match number.split_once('.') {
        Some((whole, fraction)) if is_digits(fraction) && fraction.len() <= MAX_FRACTION => {
            (whole, fraction)
        }
        Some(_) => return Err(malformed()),
        None => (number, ""),
    };
    if !is_digits(whole) {
        return Err(malformed());
    }

    // At most 40 digits were let through, so only the whole part can leave 128 bits.
    let too_large = || ByteSizeError::TooLarge { value: value() };
    let whole: u128 = whole.parse().map_err(|_| too_large())?;
    let parts = match fraction {
        "" => 0,
        digits => {
            let numerator: u128 = digits.parse().map_err(|_| malformed())?;
            numerator * u128::from(scale) / 10_u128.pow(u32::try_from(digits.len()).unwrap_or(0))
        }
    };
    let bytes = whole
        .checked_mul(u128::from(scale))
        .and_then(|bytes| bytes.checked_add(parts))
        .and_then(|bytes| u64::try_from(bytes).ok())
        .ok_or_else(too_large)?;
    match bytes {
        0 => Err(ByteSizeError::Zero { value: value() }),
        bytes => Ok(bytes),
    }
}

fn is_digits(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

fn scale_of(unit: &str) -> Option<u64> {
    let unit = unit.to_ascii_lowercase();
    match unit.as_str() {
        "" | "b" => Some(1),
        "k" | "ki" | "kb" | "kib" => Some(1 << 10),
        "m" | "mi" | "mb" | "mib" => Some(1 << 20),
        "g" | "gi" | "gb" | "gib" => Some(1 << 30),
        "t" | "ti" | "tb" | "tib" => Some(1 << 40),
        _ => None,
    }
}

/// The size in the largest unit that shows it exactly: `512m`, `1536k`, `1000`.
pub fn format_byte_size(bytes: u64) -> String {
    for (unit, shift) in [("t", 40), ("g", 30), ("m", 20), ("k", 10)] {
        if bytes != 0 && bytes.trailing_zeros() >= shift {
            return format!("{}{unit}", bytes >> shift);
        }
    }
    bytes.to_string()
}

/// A caller's value for a message: in quotes, escaped, cut to 40 characters.
pub(crate) fn quoted(value: &str) -> String {
    let shown: String = value.chars().take(SHOWN).collect();
    if shown.len() == value.len() {
        format!("{shown:?}")
    } else {
        format!("{shown:?}…")
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn sizes_as_people_write_them() {
        for (text, bytes) in [
            ("1", 1),
            ("1b", 1),
            ("1024", 1024),
            ("1024k", 1 << 20),
            ("512m", 512 << 20),
            ("512M", 512 << 20),
            ("512mb", 512 << 20),
            ("512Mi", 512 << 20),
            ("512MiB", 512 << 20),
            ("512MIB", 512 << 20),
            ("2g", 2 << 30),
            ("1.5g", 3 << 29),
            ("1.50G", 3 << 29),
            ("0.5k", 512),
            ("0512m", 512 << 20),
            ("1t", 1 << 40),
            // 1.1 has no exact binary form; the arithmetic here is decimal.
            ("1.1k", 1126),
            ("1.1g", 1_181_116_006),
            ("0.3m", 314_572),
            ("1.9999999999999999k", 2047),
            ("18446744073709551615", u64::MAX),
            ("16777215.999999t", 18_446_744_073_708_452_104),
        ] {
            assert_eq!(parse_byte_size(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn what_is_no_size_is_refused_by_its_kind() {
        let malformed = [
            "",
            " ",
            "m",
            "b",
            "ib",
            "i",
            ".",
            ".5g",
            "1.",
            "1.g",
            "1..5g",
            "1.5.5g",
            "+1",
            "1e3",
            "0x10",
            "1_000",
            "1,5g",
            "12 m",
            " 12m",
            "12m ",
            "12m\n",
            "12\0",
            "12mm",
            "12bm",
            "12ii",
            "12bi",
            "12p",
            "m12",
            "½g",
            "５12m",
            "512ｍ",
            "512м",
            "١٢m",
            "nan",
            "inf",
            "1.0000000000000000001g",
            "00000000000000000000000000000000000000001",
        ];
        for text in malformed {
            assert!(
                matches!(parse_byte_size(text), Err(ByteSizeError::Malformed { .. })),
                "{text:?} gave {:?}",
                parse_byte_size(text)
            );
        }
        for text in ["0", "0m", "0.0g", "0.0001k", "0.5"] {
            assert!(
                matches!(parse_byte_size(text), Err(ByteSizeError::Zero { .. })),
                "{text:?}"
            );
        }
        for text in ["-1", "-512m", "-"] {
            assert!(
                matches!(parse_byte_size(text), Err(ByteSizeError::Negative { .. })),
                "{text:?}"
            );
        }
        for text in [
            "18446744073709551616",
            "16777216t",
            "99999999999999999999999999999999g",
            "9999999999999999999999999999999999999999",
        ] {
            assert!(
                matches!(parse_byte_size(text), Err(ByteSizeError::TooLarge { .. })),
                "{text:?}"
            );
        }
    }

    #[test]
    fn messages_hold_the_value_but_not_all_of_a_long_one() {
        let told = |text: &str| parse_byte_size(text).unwrap_err().to_string();
        assert_eq!(told("12 m"), r#""12 m" is not a size"#);
        assert_eq!(told("-5m"), r#""-5m" is negative"#);
        assert_eq!(told("0m"), r#""0m" is zero bytes"#);
        assert_eq!(told("1\n2"), r#""1\n2" is not a size"#);
        assert!(told(&"x".repeat(1_000_000)).len() < 100);
    }

    #[test]
    fn formatting_is_exact() {
        for (bytes, text) in [
            (0, "0"),
            (1000, "1000"),
            (1024, "1k"),
            (1536 << 10, "1536k"),
            (512 << 20, "512m"),
            (2 << 30, "2g"),
            (1 << 40, "1t"),
        ] {
            assert_eq!(format_byte_size(bytes), text);
        }
    }

    proptest! {
        #[test]
        fn any_text_gives_an_answer(text in any::<String>()) {
            let _ = parse_byte_size(&text);
        }

        #[test]
        fn texts_that_look_like_sizes_give_an_answer(text in "[-+]?[0-9]{0,45}[.]?[0-9]{0,25}[kKmMgGtTiIbB ]{0,4}") {
            if let Ok(bytes) = parse_byte_size(&text) {
                prop_assert!(bytes > 0);
            }
        }

        #[test]
        fn what_is_formatted_can_be_parsed(bytes in 1..=u64::MAX) {
            prop_assert_eq!(parse_byte_size(&format_byte_size(bytes)), Ok(bytes));
        }

        #[test]
        fn fractions_follow_exact_division(whole in 0_u64..1_000_000, thousandths in 0_u64..1000) {
            let exact = (u128::from(whole) * 1000 + u128::from(thousandths)) * (1 << 30) / 1000;
            let text = format!("{whole}.{thousandths:03}g");
            match parse_byte_size(&text) {
                Ok(bytes) => prop_assert_eq!(u128::from(bytes), exact),
                Err(error) => {
                    let zero = matches!(error, ByteSizeError::Zero { .. });
                    prop_assert!(zero && exact == 0, "{} gave {}", text, error);
                }
            }
        }
    }
}
