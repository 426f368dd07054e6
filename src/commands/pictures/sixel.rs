//! PNG to sixels (DEC, VT330/VT340 Programmer Reference Manual, volume 2, chapter 14).
//!
//! The picture is hostile, so what it may take is bounded before it is decoded. Colours are rounded
//! until 256 are left, which is plenty for a plot; a photograph loses shades.

use std::collections::HashMap;
use std::io::Cursor;

use png::{Decoder, Limits, Transformations};

/// Largest picture that is decoded, pixels.
const MAX_PIXELS: u64 = 16 << 20;
/// What the decoder may hold besides the pixels, bytes.
const MAX_DECODER: usize = 4 << 20;
/// Largest side of what is drawn, pixels: xterm draws no more unless it is configured to.
const MAX_SIDE: usize = 1000;
/// Registers for colours.
const MAX_COLOURS: usize = 256;

type Rgb = [u8; 3];

struct Pixels {
    width: usize,
    height: usize,
    rgb: Vec<Rgb>,
}

/// Nothing when the PNG is broken or too large.
pub(super) fn encode(png: &[u8]) -> Option<Vec<u8>> {
    let pixels = decode(png)?;
    let factor = pixels.width.max(pixels.height).div_ceil(MAX_SIDE);
    Some(draw(&reduced(pixels, factor)))
}

/// The picture on white: most plots that have no background are black lines.
fn decode(png: &[u8]) -> Option<Pixels> {
    let limits = Limits { bytes: MAX_DECODER };
    let mut decoder = Decoder::new_with_limits(Cursor::new(png), limits);
    decoder.set_transformations(Transformations::normalize_to_color8());
    decoder.set_ignore_text_chunk(true);
    decoder.set_ignore_iccp_chunk(true);
    let header = decoder.read_header_info().ok()?;
    let (width, height) = (header.width, header.height);
    if u64::from(width) * u64::from(height) > MAX_PIXELS {
        return None;
    }
    let mut reader = decoder.read_info().ok()?;
    let mut bytes = vec![0; reader.output_buffer_size()?];
    let frame = reader.next_frame(&mut bytes).ok()?;
    // The first frame of an animation can be smaller than the whole.
    if (frame.width, frame.height) != (width, height) {
        return None;
    }
    let on_white = |value: u8, alpha: u8| {
        let (value, alpha) = (u16::from(value), u16::from(alpha));
        ((value * alpha + 255 * (255 - alpha)) / 255) as u8
    };
    let samples = frame.color_type.samples();
    let rgb = bytes[..frame.buffer_size()].chunks_exact(samples);
    let rgb = rgb.map(|pixel| match *pixel {
        [grey] => [grey; 3],
        [grey, alpha] => [on_white(grey, alpha); 3],
        [r, g, b] => [r, g, b],
        [r, g, b, alpha] => [r, g, b].map(|value| on_white(value, alpha)),
        _ => [255; 3],
    });
    Some(Pixels {
        width: width as usize,
        height: height as usize,
        rgb: rgb.collect(),
    })
}

/// The picture with one pixel, their mean, for each square of this many.
fn reduced(pixels: Pixels, factor: usize) -> Pixels {
    if factor <= 1 {
        return pixels;
    }
    let (width, height) = (
        pixels.width.div_ceil(factor),
        pixels.height.div_ceil(factor),
    );
    let mut rgb = Vec::with_capacity(width * height);
    for (y, x) in (0..height).flat_map(|y| (0..width).map(move |x| (y, x))) {
        let mut mean = Mean::default();
        for row in (y * factor..pixels.height).take(factor) {
            let row = &pixels.rgb[row * pixels.width..][..pixels.width];
            row[x * factor..]
                .iter()
                .take(factor)
                .for_each(|colour| mean.add(*colour));
        }
        rgb.push(mean.colour());
    }
    Pixels { width, height, rgb }
}

#[derive(Default)]
struct Mean {
    sums: [u64; 3],
    count: u64,
}

impl Mean {
    fn add(&mut self, colour: Rgb) {
        for (sum, value) in self.sums.iter_mut().zip(colour) {
            *sum += u64::from(value);
        }
        self.count += 1;
    }

    fn colour(&self) -> Rgb {
        self.sums.map(|sum| (sum / self.count.max(1)) as u8)
    }
}

/// The palette, and the entry for each pixel. As many low bits are ignored as it takes.
fn palette(rgb: &[Rgb]) -> (Vec<Rgb>, Vec<u8>) {
    'coarser: for ignored in 0..8 {
        let mut numbers = HashMap::new();
        let mut means: Vec<Mean> = Vec::new();
        let mut entries = Vec::with_capacity(rgb.len());
        for colour in rgb {
            let number = *numbers
                .entry(colour.map(|value| value >> ignored))
                .or_insert(means.len());
            if number == MAX_COLOURS {
                continue 'coarser;
            }
            if number == means.len() {
                means.push(Mean::default());
            }
            means[number].add(*colour);
            entries.push(number as u8);
        }
        return (means.iter().map(Mean::colour).collect(), entries);
    }
    (vec![[255; 3]], vec![0; rgb.len()])
}

fn draw(pixels: &Pixels) -> Vec<u8> {
    let (palette, entries) = palette(&pixels.rgb);
    let mut drawing = format!("\x1bPq\"1;1;{};{}", pixels.width, pixels.height);
    let percent = |value: u8| (u32::from(value) * 100 + 127) / 255;
    for (number, colour) in palette.iter().enumerate() {
        let [r, g, b] = colour.map(percent);
        drawing.push_str(&format!("#{number};2;{r};{g};{b}"));
    }
    for band in entries.chunks(6 * pixels.width) {
        // For each colour, which of the six rows each column has it in.
        let mut rows: Vec<Option<Vec<u8>>> = vec![None; palette.len()];
        for (at, entry) in band.iter().enumerate() {
            let columns = rows[usize::from(*entry)].get_or_insert_with(|| vec![0; pixels.width]);
            columns[at % pixels.width] |= 1 << (at / pixels.width);
        }
        for (number, columns) in rows.iter().enumerate() {
            let Some(columns) = columns else { continue };
            drawing.push_str(&format!("#{number}"));
            for run in columns.chunk_by(|a, b| a == b) {
                let sixel = char::from(b'?' + run[0]);
                match run.len() {
                    short @ 1..=3 => drawing.extend(std::iter::repeat_n(sixel, short)),
                    long => drawing.push_str(&format!("!{long}{sixel}")),
                }
            }
            drawing.push('$');
        }
        drawing.push('-');
    }
    drawing.push_str("\x1b\\");
    drawing.into_bytes()
}

#[cfg(test)]
mod tests {
    use png::{BitDepth, ColorType, Encoder};
    use proptest::prelude::*;

    use super::*;

    fn png(width: u32, height: u32, color: ColorType, data: &[u8]) -> Vec<u8> {
        let mut file = Vec::new();
        let mut encoder = Encoder::new(&mut file, width, height);
        encoder.set_color(color);
        encoder.set_depth(BitDepth::Eight);
        let mut writer = encoder.write_header().unwrap();
        writer.write_image_data(data).unwrap();
        writer.finish().unwrap();
        file
    }

    /// What a terminal would draw: for each pixel its colour in per cent.
    fn drawn(drawing: &[u8]) -> (usize, usize, Vec<[u32; 3]>) {
        let text = std::str::from_utf8(drawing).unwrap();
        let mut rest = text
            .strip_prefix("\x1bPq\"1;1;")
            .unwrap()
            .strip_suffix("\x1b\\")
            .unwrap();
        fn number(rest: &mut &str) -> usize {
            let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap();
            let (digits, after) = rest.split_at(end);
            *rest = after;
            digits.parse().unwrap()
        }
        let width = number(&mut rest);
        rest = &rest[1..];
        let height = number(&mut rest);
        let mut pixels = vec![[u32::MAX; 3]; width * height];
        let mut colours = HashMap::new();
        let (mut x, mut y, mut colour) = (0, 0, 0);
        while let Some(next) = rest.bytes().next() {
            rest = &rest[1..];
            let mut count = 1;
            let mut sixel = next;
            match next {
                b'$' => x = 0,
                b'-' => (x, y) = (0, y + 6),
                b'#' => {
                    colour = number(&mut rest);
                    if rest.starts_with(";2;") {
                        let mut defined = [0; 3];
                        rest = &rest[2..];
                        for value in &mut defined {
                            rest = &rest[1..];
                            *value = number(&mut rest) as u32;
                        }
                        colours.insert(colour, defined);
                    }
                }
                b'!' => {
                    count = number(&mut rest);
                    sixel = rest.as_bytes()[0];
                    rest = &rest[1..];
                }
                _ => {}
            }
            if (b'?'..=b'~').contains(&sixel) {
                for _ in 0..count {
                    for row in (0..6).filter(|row| (sixel - b'?') >> row & 1 == 1) {
                        pixels[(y + row) * width + x] = colours[&colour];
                    }
                    x += 1;
                }
            }
        }
        (width, height, pixels)
    }

    #[test]
    fn a_small_picture_is_these_bytes() {
        let file = png(5, 7, ColorType::Grayscale, &[0; 35]);
        let drawing = b"\x1bPq\"1;1;5;7#0;2;0;0;0#0!5~$-#0!5@$-\x1b\\";
        assert_eq!(encode(&file).unwrap(), drawing);
        let file = png(2, 1, ColorType::Rgba, &[255, 0, 0, 255, 9, 9, 9, 0]);
        let drawing = b"\x1bPq\"1;1;2;1#0;2;100;0;0#1;2;100;100;100#0@?$#1?@$-\x1b\\";
        assert_eq!(encode(&file).unwrap(), drawing);
    }

    #[test]
    fn a_large_picture_is_made_smaller() {
        let (width, height) = (2500, 3);
        let data = vec![255; 2500 * 3];
        let file = png(width, height, ColorType::Grayscale, &data);
        let (width, height, pixels) = drawn(&encode(&file).unwrap());
        assert_eq!((width, height), (834, 1));
        assert!(pixels.iter().all(|pixel| *pixel == [100; 3]));
    }

    #[test]
    fn many_colours_become_256() {
        let data: Vec<u8> = (0..64 * 64u32)
            .flat_map(|at| [at as u8, (at >> 4) as u8, (at * 7) as u8])
            .collect();
        let file = png(64, 64, ColorType::Rgb, &data);
        let (_, _, pixels) = drawn(&encode(&file).unwrap());
        for (pixel, colour) in pixels.iter().zip(data.chunks(3)) {
            for (percent, value) in pixel.iter().zip(colour) {
                let value = i64::from(*value) * 100 / 255;
                assert!((i64::from(*percent) - value).abs() <= 26);
            }
        }
    }

    #[test]
    fn a_picture_of_too_many_pixels_is_not_decoded() {
        let mut file = png(1, 1, ColorType::Grayscale, &[0]);
        let header = |file: &mut Vec<u8>, width: u32, height: u32| {
            file[16..20].copy_from_slice(&width.to_be_bytes());
            file[20..24].copy_from_slice(&height.to_be_bytes());
            let mut crc = 0xffff_ffff_u32;
            for byte in &file[12..29] {
                crc ^= u32::from(*byte);
                for _ in 0..8 {
                    crc = crc >> 1 ^ (0xedb8_8320 & 0u32.wrapping_sub(crc & 1));
                }
            }
            file[29..33].copy_from_slice(&(!crc).to_be_bytes());
        };
        header(&mut file, 1, 1);
        assert!(decode(&file).is_some());
        header(&mut file, 16_384, 16_384);
        assert!(decode(&file).is_none());
    }

    proptest! {
        #[test]
        fn what_is_drawn_is_the_picture(
            width in 1u32..20,
            data in proptest::collection::vec(any::<[u8; 3]>(), 1..200),
        ) {
            let height = data.len() as u32 / width;
            prop_assume!(height > 0);
            let data = &data[..(width * height) as usize];
            let file = png(width, height, ColorType::Rgb, data.as_flattened());
            let (drawn_width, drawn_height, pixels) = drawn(&encode(&file).unwrap());
            prop_assert_eq!((drawn_width, drawn_height), (width as usize, height as usize));
            let percent = data.iter().map(|colour| colour.map(|v| (u32::from(v) * 100 + 127) / 255));
            prop_assert_eq!(pixels, percent.collect::<Vec<_>>());
        }

        #[test]
        fn a_broken_picture_draws_sixels_or_nothing(
            at in 0usize..200,
            garbage in proptest::collection::vec(any::<u8>(), 0..64),
        ) {
            let mut file = png(16, 16, ColorType::Rgba, &[7; 16 * 16 * 4]);
            file.truncate(at);
            file.extend(garbage);
            if let Some(drawing) = encode(&file) {
                let body = drawing.strip_suffix(b"\x1b\\").unwrap();
                let body = body.strip_prefix(b"\x1bP").unwrap();
                prop_assert!(body.iter().all(u8::is_ascii_graphic));
            }
        }
    }
}
