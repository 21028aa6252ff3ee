//! `iris train --out RUN --continue`: the command that began a run continues it. What a continued run says about its config.

use std::path::Path;

use agent::train::{Damaged, Resume, Run, TrainConfig, Trainer};
use anyhow::{Result, bail};
use engine::Device;
use toml::Value;

use super::asked_for;
use crate::args::TrainArgs;
use crate::config;
use crate::output::{tell, warn};

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

/// `config.toml` is for people and for `iris report`: written if it is missing or the run is `raised` to more epochs. What was changed in it changes nothing.
pub fn check_config_file(run: &Run, trainer: &Trainer, raised: bool) -> Result<()> {
    let path = run.folder().join("config.toml");
    let Ok(found) = std::fs::read_to_string(&path) else {
        return Ok(run.write_config(&config::document(&trainer.config)?)?);
    };
    let Ok(mut found) = toml::from_str::<TrainConfig>(&found) else {
        warn_of_other_config(&path);
        return Ok(());
    };
    if raised && found.epochs < trainer.config.epochs {
        note_learning_rates(trainer, found.epochs);
        found.epochs = trainer.config.epochs;
        if found == trainer.config {
            return Ok(run.write_config(&config::document(&found)?)?);
        }
    }
    if found != trainer.config {
        warn_of_other_config(&path);
    }
    Ok(())
}

fn warn_of_other_config(path: &Path) {
    warn(format!(
        "{} differs from the config this run was started with, which stays in force. Delete the file to regenerate it",
        path.display()
    ));
}

/// Linear decay ends at the last epoch: with more of them, rates are higher than they were.
fn note_learning_rates(trainer: &Trainer, before: usize) {
    let (config, epoch) = (&trainer.config, trainer.epoch);
    for (network, schedule) in config.schedules() {
        let old = schedule.learning_rate_in(epoch.saturating_sub(1), before);
        let new = schedule.learning_rate_in(epoch, config.epochs);
        if old != new {
            tell!(
                "note: the learning rate of the {network} decays over all {} epochs now: it goes on from {old:.1e} with {new:.1e}",
                config.epochs
            );
        }
    }
}
