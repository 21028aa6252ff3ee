//! `iris train --out RUN --continue`: the command that began a run continues it.

use std::path::Path;

use agent::train::{Damaged, Resume, Run, TrainConfig, Trainer};
use anyhow::{Result, bail};
use engine::Device;
use toml::Value;

use super::{asked_for, check_config_file};
use crate::args::TrainArgs;
use crate::output::warn;

/// Differences that an error names.
const NAMED: usize = 3;

/// Continues a run that was begun with the same settings. More epochs make it longer; fewer are no change, since it may have been made longer before.
pub fn resume(args: &TrainArgs, device: &Device, folder: &Path) -> Result<(Run, Trainer)> {
    let asked = asked_for(args)?;
    let planned = Run::glance(folder, warn)?.config;
    let epochs = (asked.epochs > planned.epochs).then_some(asked.epochs);
    if let Some(changed) = differences(&planned, TrainConfig { epochs: planned.epochs, ..asked })? {
        bail!(
            "the run in {} was begun with other settings: {changed}. Leave them as they were, or choose another folder with --out",
            folder.display(),
        );
    }
    let (run, trainer) = Run::resume(device, folder, Resume { damaged: Damaged::Refuse, epochs }, warn)?;
    check_config_file(&run, &trainer, epochs.is_some())?;
    Ok((run, trainer))
}

/// Keys of the run that are asked for otherwise: "epochs is 4, not 8".
pub fn differences(planned: &TrainConfig, mut asked: TrainConfig) -> Result<Option<String>> {
    // The run knows what its networks came from; the source may be gone.
    if asked.init.crc32.is_empty() && asked.init.from == planned.init.from {
        asked.init.crc32 = planned.init.crc32.clone();
    }
    let mut found = Vec::new();
    compare(&Value::try_from(planned)?, &Value::try_from(asked)?, "", &mut found);
    let more = if found.len() > NAMED { ", ..." } else { "" };
    let named = found[..found.len().min(NAMED)].join(", ");
    Ok((!found.is_empty()).then(|| named + more))
}

fn compare(planned: &Value, asked: &Value, path: &str, found: &mut Vec<String>) {
    match (planned, asked) {
        (Value::Table(planned), Value::Table(asked)) => {
            for (key, value) in planned {
                let here = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
                asked.get(key).into_iter().for_each(|other| compare(value, other, &here, found));
            }
        }
        _ if planned != asked => found.push(format!("{path} is {planned}, not {asked}")),
        _ => {}
    }
}
