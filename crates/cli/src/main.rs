//! The program: everything is in the library, so that programs with games of their own can be one too.

use std::process::ExitCode;

fn main() -> ExitCode {
    iris::main()
}
