//! Which runs and agents there are under the studio's folder. Pages address them by id, never by path.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use agent::Agent;
use agent::train::Run;
use serde::Serialize;

use crate::fresh::Fresh;

/// Folders below the studio's that are searched.
const DEEPEST: usize = 8;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// A folder that `iris train` made.
    Run,
    /// A folder that `iris import` made.
    Agent,
}

/// A run or an agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RunEntry {
    /// The same for the same place under the studio's folder.
    pub id: String,
    /// Its place under the studio's folder.
    pub name: String,
    pub kind: Kind,
    #[serde(skip)]
    pub path: PathBuf,
}

pub struct Index {
    root: PathBuf,
    newest: Fresh<Vec<RunEntry>>,
}

impl Index {
    pub fn new(root: PathBuf) -> Index {
        Index { root, newest: Fresh::default() }
    }

    /// The studio's folder, for people.
    pub fn root(&self) -> String {
        self.root.display().to_string()
    }

    /// Everything there is, in the order of names.
    pub fn entries(&self) -> Arc<Vec<RunEntry>> {
        self.newest.get(|| search(&self.root))
    }

    pub fn find(&self, id: &str) -> Option<RunEntry> {
        let entry = self.entries().iter().find(|entry| entry.id == id).cloned()?;
        // It may be gone since the folder was read.
        entry.path.is_dir().then_some(entry)
    }
}

fn search(root: &Path) -> Vec<RunEntry> {
    let mut found = Vec::new();
    descend(root, root, 0, &mut found);
    found.sort_by(|a, b| a.name.cmp(&b.name));
    found
}

fn descend(root: &Path, folder: &Path, depth: usize, found: &mut Vec<RunEntry>) {
    if let Some(kind) = kind(folder) {
        found.push(entry(root, folder, kind));
        return;
    }
    // What cannot be read is not listed.
    let Ok(entries) = std::fs::read_dir(folder) else { return };
    for entry in entries.flatten().filter(|_| depth < DEEPEST) {
        // Links are not followed: they may lead back here.
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            descend(root, &entry.path(), depth + 1, found);
        }
    }
}

fn kind(folder: &Path) -> Option<Kind> {
    if folder.join("metrics.jsonl").is_file() || Run::is_in(folder) {
        return Some(Kind::Run);
    }
    Agent::is_in(folder).then_some(Kind::Agent)
}

fn entry(root: &Path, folder: &Path, kind: Kind) -> RunEntry {
    let relative = folder.strip_prefix(root).unwrap_or(folder);
    let parts: Vec<_> = relative.components().map(|part| part.as_os_str().to_string_lossy()).collect();
    let place = parts.join("/");
    let name = match place.is_empty() {
        true => root
            .canonicalize()
            .ok()
            .and_then(|path| Some(path.file_name()?.to_string_lossy().into_owned()))
            .unwrap_or_else(|| "run".into()),
        false => place.clone(),
    };
    RunEntry { id: hash(&place), name, kind, path: folder.into() }
}

/// 48 bits of FNV-1a.
pub fn hash(text: &str) -> String {
    let hash = text.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    format!("{:012x}", hash >> 16)
}

#[cfg(test)]
mod tests {
    use agent::testing::Scratch;

    use super::*;

    #[test]
    fn runs_and_agents_are_found_and_keep_their_ids() {
        let scratch = Scratch::new("index");
        let root = &scratch.0;
        for (folder, file) in [("arcade/catch/one", "metrics.jsonl"), ("agents/old", "agent.safetensors")] {
            std::fs::create_dir_all(root.join(folder)).unwrap();
            std::fs::write(root.join(folder).join(file), "").unwrap();
        }
        std::fs::create_dir_all(root.join("arcade/pong/two/checkpoints/000003")).unwrap();
        std::fs::create_dir_all(root.join("empty")).unwrap();
        let index = Index::new(root.clone());
        let entries = index.entries();
        let listed: Vec<_> = entries.iter().map(|entry| (entry.name.as_str(), entry.kind)).collect();
        assert_eq!(
            listed,
            [("agents/old", Kind::Agent), ("arcade/catch/one", Kind::Run), ("arcade/pong/two", Kind::Run)]
        );
        let one = &entries[1];
        assert_eq!(one.id, hash("arcade/catch/one"));
        assert_eq!(index.find(&one.id).as_ref(), Some(one));
        std::fs::remove_dir_all(root.join("arcade/catch")).unwrap();
        assert_eq!(index.find(&one.id), None);
        assert_eq!(index.find("../agents/old"), None);
    }
}
