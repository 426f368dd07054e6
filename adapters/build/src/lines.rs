//! What a build prints, as lines of bounded length.

use anstream::adapter::StripStr;
use mcp_forge_ports::driven::BuildLog;

/// Longest line that is told, characters.
const LONGEST: usize = 500;

/// Cuts text into lines. What a line has above its bound is left out.
pub(crate) struct Lines {
    log: BuildLog,
    /// Colours and what else terminals obey: the engine adds some of its own.
    escapes: StripStr,
    open: String,
    length: usize,
}

impl Lines {
    pub(crate) fn new(log: BuildLog) -> Self {
        Self {
            log,
            escapes: StripStr::new(),
            open: String::new(),
            length: 0,
        }
    }

    pub(crate) fn add(&mut self, text: &str) {
        let plain: String = self.escapes.strip_next(text).collect();
        for c in plain.chars() {
            if c == '\n' || c == '\r' {
                self.end();
            } else if self.length < LONGEST && !c.is_control() {
                self.length += 1;
                self.open.push(c);
            }
        }
    }

    /// Tells the line that was begun.
    pub(crate) fn end(&mut self) {
        if !self.open.trim().is_empty() {
            (self.log)(self.open.trim_end());
        }
        self.open.clear();
        self.length = 0;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    #[test]
    fn lines_are_whole_bounded_and_harmless() {
        let told = Arc::new(Mutex::new(Vec::new()));
        let into = Arc::clone(&told);
        let mut lines = Lines::new(Arc::new(move |line: &str| {
            into.lock().unwrap().push(line.to_owned());
        }));
        let coloured = "\u{1b}[91mx\u{1b}[0m\u{8}y\n";
        for part in ["Step 1", "/2\nget 10%\rget 20%\r\n\n", coloured] {
            lines.add(part);
        }
        for _ in 0..1000 {
            lines.add("yyyyyyyyyy");
        }
        assert!(lines.open.len() <= LONGEST);
        lines.end();
        lines.end();
        let told = told.lock().unwrap();
        assert_eq!(told[..4], ["Step 1/2", "get 10%", "get 20%", "xy"]);
        assert_eq!((told.len(), told[4].len()), (5, LONGEST));
    }
}
