//! Whether a picture is what its type says, as far as its first bytes tell. What is no picture
//! can make the request of a model fail, and with it the conversation.

use mcp_forge_ports::vocabulary::Picture;

/// Largest side of a PNG, pixels.
const MAX_SIDE: u32 = 16_384;

/// Whether the bytes begin as those of the type do.
pub(super) fn is_sound(picture: &Picture) -> bool {
    let data: &[u8] = &picture.data;
    match picture.mime_type.as_str() {
        "image/png" => is_png(data),
        "image/jpeg" => data.starts_with(b"\xff\xd8\xff"),
        "image/gif" => data.starts_with(b"GIF87a") || data.starts_with(b"GIF89a"),
        "image/webp" => data.starts_with(b"RIFF") && data.get(8..12) == Some(b"WEBP"),
        "image/svg+xml" => {
            std::str::from_utf8(data).is_ok_and(|text| text.trim_start().starts_with('<'))
        }
        _ => false,
    }
}

/// Signature, and a header chunk with sides that are neither nothing nor absurd (PNG, 5.2, 11.2).
fn is_png(data: &[u8]) -> bool {
    let side = |at: usize| {
        data.get(at..at + 4)
            .and_then(|bytes| bytes.try_into().ok())
            .map_or(0, u32::from_be_bytes)
    };
    data.starts_with(b"\x89PNG\r\n\x1a\n\0\0\0\x0dIHDR")
        && (1..=MAX_SIDE).contains(&side(16))
        && (1..=MAX_SIDE).contains(&side(20))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_begins_as_its_type_is_sound() {
        let png = b"\x89PNG\r\n\x1a\n\0\0\0\x0dIHDR\0\0\0\x01\0\0\0\x02rest".to_vec();
        let mut flat = png.clone();
        flat[23] = 0;
        let mut wide = png.clone();
        wide[16] = 1;
        for (mime_type, data, sound) in [
            ("image/png", png.clone(), true),
            ("image/jpeg", png.clone(), false),
            ("image/png", flat, false),
            ("image/png", wide, false),
            ("image/png", png[..20].to_vec(), false),
            ("image/png", Vec::new(), false),
            ("image/jpeg", b"\xff\xd8\xff\xe0".to_vec(), true),
            ("image/gif", b"GIF89a".to_vec(), true),
            ("image/webp", b"RIFF\0\0\0\0WEBPVP8 ".to_vec(), true),
            ("image/webp", b"RIFF\0\0\0\0WAVE".to_vec(), false),
            ("image/svg+xml", b"\n<svg/>".to_vec(), true),
            ("image/svg+xml", b"\xff<svg/>".to_vec(), false),
            ("image/tiff", b"II*\0".to_vec(), false),
        ] {
            let picture = Picture {
                mime_type: mime_type.to_owned(),
                data: data.into(),
            };
            assert_eq!(is_sound(&picture), sound, "{picture:?}");
        }
    }
}
