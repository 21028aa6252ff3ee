use std::process::ExitCode;

fn main() -> ExitCode {
    iris::main()
}
