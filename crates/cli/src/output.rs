//! What a command prints. A reader that has seen enough (`iris doctor | head -1`) ends it quietly, a full disk with a message; `println!` panics.

use std::fmt::Arguments;
use std::io::{ErrorKind, Write, stdout};

/// Prints a line to standard output.
macro_rules! say {
    ($($line:tt)*) => { $crate::output::line(format_args!($($line)*)) };
}
pub(crate) use say;

pub fn line(line: Arguments) {
    let mut out = stdout().lock();
    if let Err(error) = writeln!(out, "{line}").and_then(|()| out.flush()) {
        if error.kind() != ErrorKind::BrokenPipe {
            eprintln!("error: cannot write to standard output: {error}");
        }
        std::process::exit(if error.kind() == ErrorKind::BrokenPipe { 0 } else { 1 });
    }
}
