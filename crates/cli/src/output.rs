//! What a command prints. On standard output, a reader that has seen enough (`iris doctor | head -1`) ends it quietly, a full disk with a message. On standard
//! error nobody has to listen: a log that cannot be written stops nothing. `println!` and `eprintln!` panic.

use std::fmt::Arguments;
use std::io::{ErrorKind, Write, stderr, stdout};
use std::path::Path;

/// Prints a line to standard output.
macro_rules! say {
    ($($line:tt)*) => { $crate::output::line(format_args!($($line)*)) };
}
pub(crate) use say;

/// Prints a line to standard error.
macro_rules! tell {
    ($($line:tt)*) => { $crate::output::remark(format_args!($($line)*)) };
}
pub(crate) use tell;

/// Something that is not as it should be, and stops nobody.
pub fn warn(warning: String) {
    tell!("warning: {warning}");
}

pub fn remark(line: Arguments) {
    // One write for the whole line: several processes may share a log.
    let _ = stderr().lock().write_all(format!("{line}\n").as_bytes());
}

/// A path as it can be pasted into a shell.
pub fn pasteable(path: &Path) -> String {
    let text = path.display().to_string();
    let plain = |c: char| c.is_alphanumeric() || "/._-+=:@%,".contains(c);
    match !text.is_empty() && text.chars().all(plain) {
        true => text,
        false => format!("'{}'", text.replace('\'', r"'\''")),
    }
}

pub fn line(line: Arguments) {
    let mut out = stdout().lock();
    if let Err(error) = writeln!(out, "{line}").and_then(|()| out.flush()) {
        if error.kind() != ErrorKind::BrokenPipe {
            tell!("error: cannot write to standard output: {error}");
        }
        std::process::exit(if error.kind() == ErrorKind::BrokenPipe { 0 } else { 1 });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_can_be_pasted() {
        let pasted = ["runs/arcade/catch/1", "sp ace/it's", ""].map(|path| pasteable(Path::new(path)));
        assert_eq!(pasted, ["runs/arcade/catch/1", r"'sp ace/it'\''s'", "''"]);
    }
}
