//! The report's files.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use crate::ReportError;
use crate::draw::{png, svg};
use crate::figures::{NAMES, figures};
use crate::html::html;
use crate::report::Report;
use crate::text::{latex, markdown};

/// Writes everything into a folder, which is made if need be, and says what.
pub fn write(report: &Report, folder: &Path) -> Result<Vec<PathBuf>, ReportError> {
    let failed = |path: &Path| {
        let path = path.to_path_buf();
        |source| ReportError::Write { path, source }
    };
    std::fs::create_dir_all(folder).map_err(failed(folder))?;
    let figures = figures(report);
    let json = serde_json::to_string_pretty(report).map_err(ReportError::Json)?;
    let mut files = vec![
        ("report.html".to_string(), html(report, &figures, &json).into_bytes()),
        ("report.json".to_string(), json.into_bytes()),
        ("table.md".to_string(), markdown(report).into_bytes()),
        ("table.tex".to_string(), latex(report).into_bytes()),
    ];
    for figure in &figures {
        files.push((format!("{}.svg", figure.name), svg(&figure.drawing, true).into_bytes()));
        files.push((format!("{}.png", figure.name), png(&figure.drawing)?));
    }
    // A figure that this report does not have may be there from another.
    for name in NAMES.iter().filter(|name| !figures.iter().any(|figure| figure.name == **name)) {
        for path in ["svg", "png"].map(|kind| folder.join(format!("{name}.{kind}"))) {
            match std::fs::remove_file(&path) {
                Err(error) if error.kind() != ErrorKind::NotFound => return Err(failed(&path)(error)),
                _ => {}
            }
        }
    }
    let write = |(name, bytes): (String, Vec<u8>)| {
        let path = folder.join(name);
        std::fs::write(&path, bytes).map_err(failed(&path))?;
        Ok(path)
    };
    files.into_iter().map(write).collect()
}
