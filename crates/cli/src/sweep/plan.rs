//! What a sweep consists of: `sweep.toml`, and one line per run in `runs.jsonl`, which follows from it.

use std::collections::{BTreeSet, HashSet};
use std::path::{Path, PathBuf};

use agent::write_atomically;
use anyhow::{Context, Result, bail};
use envs::Game;
use serde::{Deserialize, Serialize};

use super::adopt;
use crate::config::combine;
use crate::output::program;
use crate::words::counted;

const FILE: &str = "sweep.toml";
const RUNS_FILE: &str = "runs.jsonl";
const VERSION: u32 = 1;
/// More would be a mistake: Slurm's arrays end at 1,000 by default.
const MOST_RUNS: usize = 10_000;
/// Bytes of a folder's name that say which settings a run has.
const LONGEST_NAME: usize = 120;

/// What was asked for, with full names.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    version: u32,
    pub preset: String,
    pub games: Vec<String>,
    pub seeds: Vec<u64>,
    /// `key=value`, or `key=value,value` for a run with each.
    pub overrides: Vec<String>,
}

/// A run of a sweep.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Planned {
    /// Its line in `runs.jsonl`, from 0.
    pub run: usize,
    pub env: String,
    pub seed: u64,
    pub overrides: Vec<String>,
    /// In the sweep's folder.
    pub folder: String,
}

/// A sweep on disk.
pub struct Sweep {
    pub folder: PathBuf,
    pub plan: Plan,
    pub runs: Vec<Planned>,
}

impl Plan {
    pub fn new(preset: &str, games: &[String], seeds: &str, overrides: &[String]) -> Result<Plan> {
        let mut named = Vec::new();
        for name in games {
            match name.as_str() {
                "atari-100k" => named.extend(envs::atari::games().into_iter().map(|game| game.name)),
                "arcade" => named.extend(envs::arcade::games().into_iter().map(|game| game.name)),
                name => named.push(Game::find(name)?.name),
            }
        }
        let (seeds, overrides) = (parse_seeds(seeds)?, overrides.to_vec());
        let plan = Plan { version: VERSION, preset: preset.into(), games: named, seeds, overrides };
        plan.check()?;
        plan.check_configs()?;
        Ok(plan)
    }

    /// Refuses what no sweep can be made of, as far as that is quickly said.
    fn check(&self) -> Result<()> {
        if self.version > VERSION {
            bail!(
                "it has format version {}; this program reads up to {VERSION}: use a newer one",
                self.version
            );
        }
        if self.games.is_empty() || self.seeds.is_empty() {
            bail!("a sweep needs at least one game and one seed");
        }
        let twice = |what: &str, name: String| format!("{what} {name} is listed twice");
        let mut seen = HashSet::new();
        if let Some(game) = self.games.iter().find(|game| !seen.insert(*game)) {
            bail!(twice("game", game.clone()));
        }
        let mut seen = HashSet::new();
        if let Some(seed) = self.seeds.iter().find(|seed| !seen.insert(*seed)) {
            bail!(twice("seed", seed.to_string()));
        }
        let mut runs = self.games.len().saturating_mul(self.seeds.len());
        let mut keys = HashSet::new();
        for text in &self.overrides {
            let (key, values) = alternatives(text)?;
            if key == "env" || key == "seed" {
                bail!("`{text}`: a sweep has its games from --games and its seeds from --seeds");
            }
            if !keys.insert(key) {
                bail!("`{key}` is given twice; write {key}=VALUE,VALUE for a run with each");
            }
            let mut seen = HashSet::new();
            if let Some(value) = values.iter().find(|value| !seen.insert(**value)) {
                bail!("`{text}` has the value {value} twice");
            }
            runs = runs.saturating_mul(values.len());
        }
        if runs > MOST_RUNS {
            bail!("that makes {runs} runs; a sweep has at most {MOST_RUNS}: make several");
        }
        Ok(())
    }

    /// Every combination of settings must be a config, with every game.
    fn check_configs(&self) -> Result<()> {
        for game in &self.games {
            for variant in self.variants()? {
                let env = [format!("env={game}")];
                combine(&self.preset, None, &[&variant.overrides[..], &env].concat())?;
            }
        }
        Ok(())
    }

    /// The combinations of settings.
    fn variants(&self) -> Result<Vec<Variant>> {
        let mut variants = vec![Variant::default()];
        for text in &self.overrides {
            let (key, values) = alternatives(text)?;
            let with = |variant: &Variant, value: &str| {
                let mut variant = variant.clone();
                let setting = format!("{key}={value}");
                if values.len() > 1 {
                    variant.differs.push(setting.clone());
                }
                variant.overrides.push(setting);
                variant
            };
            variants = variants.iter().flat_map(|v| values.iter().map(|value| with(v, value))).collect();
        }
        Ok(variants)
    }

    /// Where the runs of each combination are, in `runs`.
    pub fn variant_names(&self) -> Result<Vec<String>> {
        let names = folder_names(&self.variants()?);
        Ok(names.into_iter().map(|name| name.trim_end_matches('/').to_string()).collect())
    }

    /// All runs in their order: games with the first seed, then with the next.
    fn runs(&self) -> Result<Vec<Planned>> {
        let variants = self.variants()?;
        let names = folder_names(&variants);
        let mut runs = Vec::new();
        for seed in &self.seeds {
            for env in &self.games {
                for (variant, name) in variants.iter().zip(&names) {
                    let folder = format!("runs/{name}{env}/seed{seed}");
                    let (run, overrides) = (runs.len(), variant.overrides.clone());
                    runs.push(Planned { run, env: env.clone(), seed: *seed, overrides, folder });
                }
            }
        }
        Ok(runs)
    }

    /// The plan that a file's text describes, with its runs.
    pub fn parse(text: &str) -> Result<(Plan, Vec<Planned>)> {
        let plan: Plan = toml::from_str(text).map_err(|error| anyhow::anyhow!("{}", error.message()))?;
        plan.check()?;
        for game in &plan.games {
            // A name is a part of a path.
            if Game::find(game)?.name != *game || game.split('/').any(|part| part.is_empty() || part == "..")
            {
                bail!("`{game}` is not the full name of a game");
            }
        }
        let runs = plan.runs()?;
        Ok((plan, runs))
    }
}

/// A combination of settings.
#[derive(Clone, Default)]
struct Variant {
    overrides: Vec<String>,
    /// Those that tell it from the others.
    differs: Vec<String>,
}

/// The part of a run's folder that says its settings: none where all runs have the same.
fn folder_names(variants: &[Variant]) -> Vec<String> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "._-=+,".contains(c);
    let name = |variant: &Variant| -> String {
        variant.differs.join(",").chars().map(|c| if plain(c) { c } else { '_' }).collect()
    };
    let names: Vec<String> = variants.iter().map(name).collect();
    let distinct = names.iter().collect::<BTreeSet<_>>().len() == names.len();
    match names.len() {
        1 => vec![String::new()],
        _ if distinct && names.iter().all(|name| name.len() <= LONGEST_NAME) => {
            names.iter().map(|name| format!("{name}/")).collect()
        }
        count => (0..count).map(|number| format!("variant{number}/")).collect(),
    }
}

/// "0..4" (both ends belong to it), "0,3,7", or both.
fn parse_seeds(text: &str) -> Result<Vec<u64>> {
    let number = |part: &str| -> Result<u64> {
        match part.trim().parse::<u64>().ok().filter(|seed| *seed <= i64::MAX as u64) {
            Some(seed) => Ok(seed),
            None => bail!("seeds `{text}`: write a range such as 0..4, or numbers such as 0,3,7"),
        }
    };
    let mut seeds = Vec::new();
    for part in text.split(',') {
        let Some((first, last)) = part.split_once("..") else {
            seeds.push(number(part)?);
            continue;
        };
        let (first, last) = (number(first)?, number(last.trim_start_matches('='))?);
        if first > last {
            bail!("seeds `{text}`: a range goes up, write {last}..{first}");
        }
        if last - first >= MOST_RUNS as u64 {
            bail!("seeds `{text}`: a sweep has at most {MOST_RUNS} runs");
        }
        seeds.extend(first..=last);
    }
    Ok(seeds)
}

/// The key and the values of `key=value,value`. Commas in brackets and quotes belong to a value.
fn alternatives(text: &str) -> Result<(&str, Vec<&str>)> {
    let Some((key, list)) = text.split_once('=') else {
        bail!("`{text}` is not an override: write key.sub=value");
    };
    let (mut values, mut start, mut depth, mut quote) = (Vec::new(), 0, 0usize, None);
    for (at, c) in list.char_indices() {
        match (c, quote) {
            ('"' | '\'', None) => quote = Some(c),
            (c, Some(open)) if c == open => quote = None,
            ('[' | '{', None) => depth += 1,
            (']' | '}', None) => depth = depth.saturating_sub(1),
            (',', None) if depth == 0 => {
                values.push(list[start..at].trim());
                start = at + 1;
            }
            _ => {}
        }
    }
    values.push(list[start..].trim());
    match values.iter().any(|value| value.is_empty()) {
        true => bail!("`{text}` has an empty value"),
        false => Ok((key.trim(), values)),
    }
}

impl Sweep {
    /// Writes a sweep to a folder. Whether it is new: the same sweep may be there already.
    pub fn create(folder: &Path, plan: Plan) -> Result<(Sweep, bool)> {
        let runs = plan.runs()?;
        let sweep = Sweep { folder: folder.into(), plan, runs };
        if folder.join(FILE).exists() {
            let there = Sweep::load(folder)?;
            if there.plan != sweep.plan {
                bail!(
                    "{} holds another sweep, of {}: choose another folder",
                    folder.display(),
                    counted(there.runs.len(), "run")
                );
            }
            return Ok((there, false));
        }
        if let Some(above) = adopt::enclosing(folder, FILE)? {
            bail!("{} lies in the sweep {}: choose another folder", folder.display(), above.display());
        }
        if agent::train::Run::is_in(folder) || agent::Agent::is_in(folder) {
            bail!("{} holds a run or an agent: choose another folder for the sweep", folder.display());
        }
        adopt::check_runs(&sweep)?;
        std::fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
        write_atomically(&folder.join(RUNS_FILE), sweep.lines()?.as_bytes())?;
        // Last: a sweep is there when this file is.
        let text = format!(
            "# A sweep: `iris sweep run` trains it. {RUNS_FILE} follows from this file, which must not be changed.\n{}",
            toml::to_string(&sweep.plan)?
        );
        write_atomically(&folder.join(FILE), text.as_bytes())?;
        Ok((sweep, true))
    }

    pub fn is_in(folder: &Path) -> bool {
        folder.join(FILE).is_file()
    }

    pub fn load(folder: &Path) -> Result<Sweep> {
        let path = folder.join(FILE);
        if !path.exists() {
            bail!(
                "{} holds no sweep: make one with `{} sweep new {} --games ... --seeds ...`",
                folder.display(),
                program(),
                folder.display()
            );
        }
        let text =
            std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let (plan, runs) = Plan::parse(&text).with_context(|| format!("{} is no sweep", path.display()))?;
        let sweep = Sweep { folder: folder.into(), plan, runs };
        sweep.check_lines()?;
        Ok(sweep)
    }

    /// The text of `runs.jsonl`.
    fn lines(&self) -> Result<String> {
        let lines: Result<Vec<String>, _> = self.runs.iter().map(serde_json::to_string).collect();
        Ok(lines?.join("\n") + "\n")
    }

    /// Array jobs go by the lines of `runs.jsonl`: it must be what the plan makes. Nobody needs it to be there.
    fn check_lines(&self) -> Result<()> {
        let path = self.folder.join(RUNS_FILE);
        let found = match std::fs::read(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            read => read.with_context(|| format!("cannot read {}", path.display()))?,
        };
        let expected = self.lines()?;
        if found == expected.as_bytes() {
            return Ok(());
        }
        let found = String::from_utf8_lossy(&found);
        let same = found.split('\n').zip(expected.split('\n')).take_while(|(a, b)| a == b).count();
        bail!(
            "line {} of {} is not what {FILE} makes: one of the two was changed. Put it back, or delete {RUNS_FILE}, which nothing needs",
            same + 1,
            path.display()
        );
    }

    pub fn run(&self, number: usize) -> Result<&Planned> {
        let Some(run) = self.runs.get(number) else {
            bail!(
                "there is no run {number}: {} has runs 0 to {}",
                self.folder.display(),
                self.runs.len() - 1
            );
        };
        Ok(run)
    }

    /// Where a run is.
    pub fn run_folder(&self, run: &Planned) -> PathBuf {
        self.folder.join(&run.folder)
    }
}

impl Planned {
    /// All that the plan says about the run, as overrides.
    pub fn settings(&self) -> Vec<String> {
        let own = [format!("env={}", self.env), format!("seed={}", self.seed)];
        [&self.overrides[..], &own].concat()
    }

    /// "arcade/catch seed 0, epochs=8".
    pub fn title(&self, of: &Plan) -> String {
        let fixed: HashSet<&String> = of.overrides.iter().collect();
        let own: Vec<&str> =
            self.overrides.iter().filter(|text| !fixed.contains(text)).map(String::as_str).collect();
        let settings = if own.is_empty() { String::new() } else { format!(", {}", own.join(", ")) };
        format!("{} seed {}{settings}", self.env, self.seed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(games: &[&str], seeds: &str, overrides: &[&str]) -> Result<Plan> {
        let strings = |list: &[&str]| list.iter().map(|s| s.to_string()).collect::<Vec<_>>();
        Plan::new("tiny", &strings(games), seeds, &strings(overrides))
    }

    #[test]
    fn a_sweep_is_the_product_of_its_lists() {
        let plan = plan(&["pong", "catch"], "0..1", &["epochs=4", "tokenizer.schedule.batch=2,3"]).unwrap();
        let runs = plan.runs().unwrap();
        let folders: Vec<&str> = runs.iter().map(|run| run.folder.as_str()).collect();
        assert_eq!(
            folders[..5],
            [
                "runs/tokenizer.schedule.batch=2/arcade/pong/seed0",
                "runs/tokenizer.schedule.batch=3/arcade/pong/seed0",
                "runs/tokenizer.schedule.batch=2/arcade/catch/seed0",
                "runs/tokenizer.schedule.batch=3/arcade/catch/seed0",
                "runs/tokenizer.schedule.batch=2/arcade/pong/seed1",
            ]
        );
        assert_eq!((runs.len(), runs[7].run), (8, 7));
        assert_eq!(runs[7].overrides, ["epochs=4", "tokenizer.schedule.batch=3"]);
        assert_eq!(runs[7].title(&plan), "arcade/catch seed 1, tokenizer.schedule.batch=3");
        let (read, again) = Plan::parse(&toml::to_string(&plan).unwrap()).unwrap();
        assert!(read == plan && again == runs);
    }

    /// The paper's benchmark: run 129 is the last.
    #[test]
    fn the_benchmark_has_130_runs() {
        let games = ["atari-100k".to_string()];
        let plan = Plan::new("atari-100k", &games, "0..4", &[]).unwrap();
        let runs = plan.runs().unwrap();
        assert_eq!((runs.len(), runs[129].folder.as_str()), (130, "runs/atari/UpNDown/seed4"));
        assert_eq!(runs[26].folder, "runs/atari/Alien/seed1");
    }

    #[test]
    fn commas_in_brackets_and_quotes_belong_to_a_value() {
        let values = |text| alternatives(text).unwrap().1;
        assert_eq!(values("a=[8, 16],[8]"), ["[8, 16]", "[8]"]);
        assert_eq!(values("a=\"x,y\",'z,'"), ["\"x,y\"", "'z,'"]);
        assert_eq!(values("a=1, 2"), ["1", "2"]);
    }

    #[test]
    fn long_and_equal_names_become_numbers() {
        let variant = |text: &str| Variant { overrides: Vec::new(), differs: vec![text.into()] };
        assert_eq!(folder_names(&[variant("a=x/y"), variant("a=x:y")]), ["variant0/", "variant1/"]);
        assert_eq!(folder_names(&[variant("a=x/y"), variant("a=1")]), ["a=x_y/", "a=1/"]);
        assert_eq!(folder_names(&[variant(&"a".repeat(200)), variant("b")])[1], "variant1/");
    }

    #[test]
    fn nonsense_is_refused() {
        for (games, seeds, overrides, answer) in [
            (&["catch"][..], "4..0", &[][..], "seeds `4..0`: a range goes up, write 0..4"),
            (&["catch"], "a", &[], "seeds `a`: write a range such as 0..4, or numbers such as 0,3,7"),
            (&["catch"], "1,0..2", &[], "seed 1 is listed twice"),
            (&["catch", "arcade"], "0", &[], "game arcade/catch is listed twice"),
            (&["cach"], "0", &[], "no game is called `cach`. Did you mean `arcade/catch`?"),
            (&["catch"], "0", &["env=pong"], "`env=pong`: a sweep has its games from --games"),
            (&["catch"], "0", &["epochs"], "`epochs` is not an override: write key.sub=value"),
            (&["catch"], "0", &["epochs=1,"], "`epochs=1,` has an empty value"),
            (&["catch"], "0", &["epochs=1,1"], "`epochs=1,1` has the value 1 twice"),
            (&["catch"], "0", &["epochs=1", "epochs=2"], "`epochs` is given twice; write epochs=VALUE"),
            (&["catch"], "0", &["epoch=1"], "no key is called `epoch`. Did you mean `epochs`?"),
            (&["catch"], "0..9998", &["epochs=1,2"], "that makes 19998 runs; a sweep has at most 10000"),
            (&["catch"], "0..10000", &[], "a sweep has at most 10000 runs"),
        ] {
            let error = plan(games, seeds, overrides).unwrap_err().to_string();
            assert!(error.starts_with(answer) || error.contains(answer), "{error}");
        }
    }

    #[test]
    fn every_way_a_file_can_be_bad() {
        let good =
            "version = 1\npreset = \"tiny\"\ngames = [\"arcade/catch\"]\nseeds = [0]\noverrides = []\n";
        assert_eq!(Plan::parse(good).unwrap().1.len(), 1);
        for (from, to, answer) in [
            ("version = 1", "version = 2", "it has format version 2; this program reads up to 1"),
            ("seeds = [0]", "seeds = []", "a sweep needs at least one game and one seed"),
            ("seeds = [0]", "seeds = [-1]", "invalid value"),
            ("seeds = [0]", "", "missing field `seeds`"),
            ("arcade/catch", "../catch", "no game is called `../catch`"),
            ("arcade/catch", "catch", "`catch` is not the full name of a game"),
            ("overrides = []", "overrides = [\"epochs\"]", "`epochs` is not an override"),
            ("preset", "presets", "unknown field `presets`"),
            ("games = [", "games = ", "unexpected key or value"),
        ] {
            let error = Plan::parse(&good.replace(from, to)).unwrap_err().to_string();
            assert!(error.contains(answer), "{to}: {error}");
        }
    }
}
