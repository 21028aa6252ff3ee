//! The program `iris`.

use std::process::ExitCode;

fn main() -> ExitCode {
    iris::main()
}
