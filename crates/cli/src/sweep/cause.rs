//! What is to blame for a run that failed: the run, or the machine under it.

use std::io::ErrorKind;

/// Whether an error says that a disk is full, or that its owner may write no more.
pub fn is_full_disk(error: &anyhow::Error) -> bool {
    let full =
        |error: &std::io::Error| matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded);
    error.chain().any(|cause| cause.downcast_ref().is_some_and(full))
}
