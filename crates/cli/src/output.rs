//! What a command prints. On standard output, a reader that has seen enough (`iris doctor | head -1`) ends it quietly, a full disk with a message. On standard
//! error nobody has to listen: a log that cannot be written stops nothing. `println!` and `eprintln!` panic.

use std::fmt::Arguments;
use std::io::{ErrorKind, Write, stderr, stdout};
use std::path::{Path, PathBuf};

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

/// Whether the locale can show more than ASCII, by the variables of POSIX in their order.
pub fn is_unicode() -> bool {
    is_utf8(|name| std::env::var(name).ok())
}

fn is_utf8(variable: impl Fn(&str) -> Option<String>) -> bool {
    let locale = ["LC_ALL", "LC_CTYPE", "LANG"].into_iter().filter_map(variable).find(|v| !v.is_empty());
    locale.is_some_and(|locale| {
        let locale = locale.to_ascii_lowercase();
        locale.ends_with("utf-8") || locale.ends_with("utf8")
    })
}

/// The command that started this program, as it can be typed again: what a hint begins with.
pub fn program() -> String {
    let typed = std::env::args_os().next().map(PathBuf::from).unwrap_or_else(|| "iris".into());
    pasteable(&relative(&typed, std::env::current_dir().ok().as_deref()))
}

/// A path from the current folder on, where it lies in it. `cargo run` starts programs by their full path.
fn relative(path: &Path, current: Option<&Path>) -> PathBuf {
    match current.and_then(|current| path.strip_prefix(current).ok()) {
        // A shell looks for a name without a slash elsewhere.
        Some(inside) if inside.components().count() == 1 => Path::new(".").join(inside),
        Some(inside) => inside.to_path_buf(),
        None => path.to_path_buf(),
    }
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
    fn the_locale_says_what_can_be_shown() {
        let utf8 = |set: &[(&str, &str)]| {
            is_utf8(|name| set.iter().find(|(n, _)| *n == name).map(|(_, value)| value.to_string()))
        };
        assert!(utf8(&[("LANG", "en_GB.UTF-8")]) && utf8(&[("LC_ALL", ""), ("LC_CTYPE", "C.utf8")]));
        assert!(!utf8(&[]) && !utf8(&[("LANG", "C")]));
        assert!(!utf8(&[("LANG", "en_GB.UTF-8"), ("LC_ALL", "C")]));
    }

    #[test]
    fn the_program_is_named_as_it_can_be_started() {
        let named = |path: &str| relative(Path::new(path), Some(Path::new("/checkout")));
        for (path, expected) in [
            ("/checkout/target/release/iris", "target/release/iris"),
            ("target/release/examples/own_game", "target/release/examples/own_game"),
            ("/checkout/own_game", "./own_game"),
            ("/usr/bin/iris", "/usr/bin/iris"),
            ("iris", "iris"),
        ] {
            assert_eq!(named(path), Path::new(expected));
        }
    }

    #[test]
    fn paths_can_be_pasted() {
        let pasted = ["runs/arcade/catch/1", "sp ace/it's", ""].map(|path| pasteable(Path::new(path)));
        assert_eq!(pasted, ["runs/arcade/catch/1", r"'sp ace/it'\''s'", "''"]);
    }
}
