//! Runs of the library: who saves, what is kept, and what continues.

use super::super::train;
use super::*;
use crate::testing::{Scratch, tiny_run};

/// The checkpoint before would fare no better, or be taken although the newest is good.
#[test]
fn a_machine_without_memory_is_no_damage() {
    let scratch = Scratch::new("machine");
    let place = Folder::new(&scratch.0);
    for epoch in [1, 2] {
        std::fs::create_dir_all(place.checkpoint(epoch)).unwrap();
    }
    let full = || Error::OutOfMemory { what: "parameters".into(), bytes: 1 << 30, place: "the GPU" };
    let denied = || failed("read", Path::new("state.json"))(std::io::ErrorKind::PermissionDenied.into());
    let attempts = |error: &dyn Fn() -> RunError| {
        let (mut attempts, mut said) = (0, 0);
        let found = place.newest_that_loads(&mut |_| said += 1, |_, _| -> Result<()> {
            attempts += 1;
            Err(error())
        });
        assert!(found.is_err());
        (attempts, said)
    };
    assert_eq!(attempts(&|| CheckpointError::from(full()).into()), (1, 0));
    assert_eq!(attempts(&|| denied().into()), (1, 0));
    let cut = || RunError::Replay(ReplayError::CutOff { path: "replay".into(), record: 3 });
    assert_eq!(attempts(&cut), (2, 1));
}

/// Damages a checkpoint after its epoch, and keeps the warnings.
struct Damaging {
    checkpoint: PathBuf,
    epoch: usize,
    warnings: Vec<Warning>,
}

impl Observer for Damaging {
    fn event(&mut self, event: Event) -> ControlFlow<()> {
        match event {
            Event::Saved { epoch } if epoch == self.epoch => {
                std::fs::write(self.checkpoint.join(AGENT_FILE), "damaged").unwrap();
            }
            Event::Warning(warning) => self.warnings.push(warning),
            _ => {}
        }
        ControlFlow::Continue(())
    }
}

/// A run of four epochs in a new folder.
fn begin(device: &Device, folder: &Path) -> (Run, Trainer) {
    Run::create(device, tiny_run(device).unwrap(), "", folder, |text| panic!("{text}")).unwrap()
}

fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap();
    let mut names: Vec<_> = entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

const REFUSE: Resume = Resume { damaged: Damaged::Refuse, epochs: None };

#[test]
fn a_run_that_nobody_watches_is_saved() {
    let device = Device::cpu(Some(1)).unwrap();
    let scratch = Scratch::new("unwatched");
    let folder = &scratch.0;
    let (mut run, mut trainer) = begin(&device, folder);
    train(&mut run, &mut trainer, &mut ()).unwrap();
    assert_eq!(names(&folder.join("checkpoints")), ["000003", "000004"]);
    let metrics = std::fs::read_to_string(folder.join("metrics.jsonl")).unwrap();
    assert!(metrics.lines().count() == 4 && metrics.contains("evaluation/return"), "{metrics}");
}

/// Looking at a run neither disturbs it nor keeps another process from continuing it.
#[test]
fn a_run_tells_where_it_is() {
    let device = Device::cpu(Some(1)).unwrap();
    let scratch = Scratch::new("position");
    let folder = scratch.0.join("run");
    assert!(!Run::is_going_on(&folder) && Run::newest_checkpoint(&folder).is_none());
    let position = || Run::glance(&folder, |_| ()).map(|glance| (glance.config, glance.epoch));
    assert!(matches!(position(), Err(RunError::NoSuchRun { .. })));
    let config = tiny_run(&device).unwrap();
    let (mut run, mut trainer) = begin(&device, &folder);
    assert!(Run::is_going_on(&folder));
    assert_eq!(position().unwrap(), (config.clone(), 0));
    train(&mut run, &mut trainer, &mut ()).unwrap();
    drop(run);
    assert!(!Run::is_going_on(&folder));
    assert_eq!(position().unwrap(), (config, 4));
    assert!(Run::newest_checkpoint(&folder).unwrap().ends_with("checkpoints/000004"));
    // Somebody looks while it is continued.
    let look = std::fs::File::open(folder.join("lock")).unwrap();
    look.try_lock_shared().unwrap();
    std::thread::scope(|scope| {
        let resumed =
            scope.spawn(|| Run::resume(&device, &folder, REFUSE, |text| panic!("{text}")).map(|_| ()));
        drop(look);
        resumed.join().unwrap().unwrap();
    });
}

/// What a run was made longer by is in its checkpoints at once.
#[test]
fn a_finished_run_can_be_made_longer() {
    let device = Device::cpu(Some(1)).unwrap();
    let scratch = Scratch::new("longer");
    let folder = &scratch.0;
    let resume = |epochs| Run::resume(&device, folder, Resume { epochs, ..REFUSE }, |text| panic!("{text}"));
    let (mut run, mut trainer) = begin(&device, folder);
    train(&mut run, &mut trainer, &mut ()).unwrap();
    drop(run);
    let refused = resume(Some(3)).map(|_| ()).unwrap_err();
    assert!(matches!(refused, RunError::FewerEpochs { epochs: 3, planned: 4 }), "{refused}");
    let refused = resume(Some(usize::MAX)).map(|_| ()).unwrap_err();
    assert!(refused.to_string().starts_with("epochs is 18446744073709551615, but must be"), "{refused}");
    drop(resume(Some(6)).unwrap());
    // The older checkpoint knows, too.
    std::fs::remove_dir_all(folder.join("checkpoints/000004")).unwrap();
    let (mut run, mut trainer) = resume(None).unwrap();
    assert_eq!((trainer.epoch, trainer.config.epochs), (3, 6));
    train(&mut run, &mut trainer, &mut ()).unwrap();
    drop(run);
    assert_eq!(resume(Some(6)).unwrap().1.epoch, 6);
}

/// The one before the newest is read before an older one is removed.
#[test]
fn a_checkpoint_that_is_damaged_during_the_run_does_not_count() {
    let device = Device::cpu(Some(1)).unwrap();
    let scratch = Scratch::new("prune");
    let folder = &scratch.0;
    let (mut run, mut trainer) = begin(&device, folder);
    let checkpoint = run.folder.checkpoint(2);
    let mut damaging = Damaging { checkpoint, epoch: 2, warnings: Vec::new() };
    train(&mut run, &mut trainer, &mut damaging).unwrap();
    assert_eq!(names(&folder.join("checkpoints")), ["000002.damaged", "000003", "000004"]);
    let warnings = damaging.warnings;
    assert!(
        matches!(&warnings[..], [Warning::Files(one)] if one.contains("000002.damaged: ")),
        "{warnings:?}"
    );
    // After epoch 3 the first one was still needed.
    drop((run, trainer));
    let (_, trainer) = Run::resume(&device, folder, REFUSE, |text| panic!("{text}")).unwrap();
    assert_eq!((trainer.epoch, trainer.replay.steps()), (4, 40));
}
