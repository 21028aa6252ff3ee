//! Signals that stop a run: Ctrl-C, and what schedulers and closing terminals send.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Result;

/// What a run that was stopped by a signal exits with: EX_TEMPFAIL of sysexits.h, "try again later".
pub const STOPPED: u8 = 75;

/// Whether a signal has asked for the end.
#[derive(Clone, Default)]
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    pub fn is_asked_for(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Asks for the end, as a signal does.
    pub fn ask(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Listens from now on. The first signal asks for the end, the second one ends the process.
    #[cfg(unix)]
    pub fn listen() -> Result<Stop> {
        use anyhow::Context;
        use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
        use signal_hook::iterator::Signals;

        let mut wanted = vec![SIGINT, SIGTERM, SIGUSR1];
        // `nohup` ignores SIGHUP so that the program outlives its terminal.
        if !ignored().is_some_and(|mask| is_in(mask, SIGHUP)) {
            wanted.push(SIGHUP);
        }
        let mut signals = Signals::new(wanted).context("cannot listen for signals")?;
        let stop = Stop::default();
        let asked = stop.clone();
        let wait = move || {
            let mut heard = false;
            for signal in signals.forever() {
                if std::mem::replace(&mut heard, true) {
                    // A run survives being killed at any moment. Shells add 128 to the signal, too.
                    std::process::exit(128 + signal);
                }
                // First: a run that stops at once ends the process.
                announce();
                asked.ask();
            }
        };
        let thread = std::thread::Builder::new().name("signals".into()).spawn(wait);
        thread.context("cannot start the thread that listens for signals")?;
        Ok(stop)
    }

    /// Elsewhere Ctrl-C ends the process; a run survives that.
    #[cfg(not(unix))]
    pub fn listen() -> Result<Stop> {
        Ok(Stop::default())
    }
}

#[cfg(unix)]
fn announce() {
    use std::io::IsTerminal;
    // Not on the line of a bar.
    let line = if std::io::stderr().is_terminal() { "\n" } else { "" };
    crate::output::tell!("{line}stopping after this update; Ctrl-C again stops at once");
}

/// Mask of the signals that this process ignores (Linux only).
#[cfg(unix)]
fn ignored() -> Option<u64> {
    ignored_in(&std::fs::read_to_string("/proc/self/status").ok()?)
}

#[cfg(unix)]
fn ignored_in(status: &str) -> Option<u64> {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"))?;
    u64::from_str_radix(mask.trim(), 16).ok()
}

/// Bit 0 is signal number 1.
#[cfg(unix)]
fn is_in(mask: u64, signal: i32) -> bool {
    mask >> (signal - 1) & 1 == 1
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use signal_hook::consts::{SIGHUP, SIGINT, SIGPIPE};

    #[test]
    fn ignored_signals_are_read_from_the_status() {
        let mask = ignored_in("Name:\tiris\nSigBlk:\t0000000000000000\nSigIgn:\t0000000000001001\n").unwrap();
        assert!(is_in(mask, SIGHUP) && is_in(mask, SIGPIPE) && !is_in(mask, SIGINT));
        assert_eq!(ignored_in("Name:\tiris\n"), None);
    }
}
