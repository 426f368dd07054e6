//! In which order pieces of both streams and reports came. It holds positions, not text, and a
//! bounded number of them: of very many pieces the first and the last keep their order, those
//! between are told as one piece for each stream.

use std::collections::VecDeque;

use mcp_forge_ports::vocabulary::{OutputBlock, OutputStream};

/// Pieces whose order is kept at the beginning, and as many at the end.
pub(super) const ORDERED: usize = 512;

/// A part of one stream's text, in bytes from its beginning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) stream: OutputStream,
    pub(super) start: u64,
    pub(super) end: u64,
}

#[derive(Debug)]
pub(super) enum Entry {
    Text(Piece),
    Report(OutputBlock),
    /// A report that is told in a stream too.
    Spoken(Piece, OutputBlock),
}

#[derive(Debug, Default)]
pub(super) struct Order {
    first: Vec<Entry>,
    /// Reports whose place among the text is no longer known.
    middle: Vec<OutputBlock>,
    last: VecDeque<Entry>,
    crowded: bool,
}

impl Order {
    /// The stream's text grew from `start` to `end`; its pieces come without a gap.
    pub(super) fn text(&mut self, piece: Piece) {
        let previous = self.last.back_mut().or_else(|| self.first.last_mut());
        if let Some(Entry::Text(before)) = previous
            && before.stream == piece.stream
        {
            before.end = piece.end;
            return;
        }
        self.push(Entry::Text(piece));
    }

    /// A report came. The caller bounds their number and size.
    pub(super) fn report(&mut self, block: OutputBlock) {
        self.push(Entry::Report(block));
    }

    /// A report came that this piece tells too.
    pub(super) fn spoken(&mut self, piece: Piece, block: OutputBlock) {
        self.push(Entry::Spoken(piece, block));
    }

    fn push(&mut self, entry: Entry) {
        if self.first.len() < ORDERED {
            self.first.push(entry);
            return;
        }
        if self.last.len() == ORDERED
            && let Some(crowded_out) = self.last.pop_front()
        {
            self.crowded = true;
            // The piece of a spoken one is told with the text of its stream.
            if let Entry::Report(block) = crowded_out {
                self.middle.push(block);
            }
        }
        self.last.push_back(entry);
    }

    /// Everything in order; every byte of each stream's text is in exactly one piece.
    pub(super) fn finish(self) -> Vec<Entry> {
        let Self {
            mut first,
            middle,
            last,
            crowded,
        } = self;
        if crowded {
            for stream in [OutputStream::Stdout, OutputStream::Stderr] {
                let of_stream = |entry: &Entry| match entry {
                    Entry::Text(piece) | Entry::Spoken(piece, _) if piece.stream == stream => {
                        Some(*piece)
                    }
                    _ => None,
                };
                let start = first.iter().rev().find_map(of_stream).map_or(0, |p| p.end);
                let end = last.iter().find_map(of_stream).map(|p| p.start);
                first.push(Entry::Text(Piece {
                    stream,
                    start,
                    // Without a later piece, everything that remains of the stream is here.
                    end: end.unwrap_or(u64::MAX),
                }));
            }
            first.extend(middle.into_iter().map(Entry::Report));
        }
        first.extend(last);
        first
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(stream: OutputStream, start: u64, end: u64) -> Piece {
        Piece { stream, start, end }
    }

    fn pieces(order: Order) -> Vec<Piece> {
        order
            .finish()
            .into_iter()
            .filter_map(|entry| match entry {
                Entry::Text(piece) => Some(piece),
                Entry::Report(_) | Entry::Spoken(..) => None,
            })
            .collect()
    }

    #[test]
    fn text_of_one_stream_is_one_piece_until_something_else_comes() {
        use OutputStream::{Stderr, Stdout};
        let mut order = Order::default();
        order.text(piece(Stdout, 0, 1));
        order.text(piece(Stdout, 1, 5));
        order.text(piece(Stderr, 0, 2));
        order.text(piece(Stdout, 5, 6));
        assert_eq!(
            pieces(order),
            [
                piece(Stdout, 0, 5),
                piece(Stderr, 0, 2),
                piece(Stdout, 5, 6)
            ]
        );
    }

    #[test]
    fn very_many_pieces_are_merged_in_the_middle_without_a_gap() {
        use OutputStream::{Stderr, Stdout};
        let mut order = Order::default();
        let count = 10 * ORDERED as u64;
        for at in 0..count {
            order.text(piece(Stdout, at, at + 1));
            order.text(piece(Stderr, 2 * at, 2 * at + 2));
        }
        let all = pieces(order);
        assert_eq!(all.len(), 2 * ORDERED + 2);
        for (stream, total) in [(Stdout, count), (Stderr, 2 * count)] {
            let mut at = 0;
            for piece in all.iter().filter(|piece| piece.stream == stream) {
                assert_eq!(piece.start, at);
                at = piece.end;
            }
            assert_eq!(at, total);
        }
    }

    #[test]
    fn reports_are_never_merged() {
        let mut order = Order::default();
        let count = 3 * ORDERED;
        for at in 0..count {
            order.report(OutputBlock::Value {
                json: None,
                repr: at.to_string(),
            });
        }
        let reprs: Vec<_> = order
            .finish()
            .into_iter()
            .filter_map(|entry| match entry {
                Entry::Report(OutputBlock::Value { repr, .. }) => Some(repr),
                _ => None,
            })
            .collect();
        assert_eq!(
            reprs,
            (0..count).map(|at| at.to_string()).collect::<Vec<_>>()
        );
    }
}
