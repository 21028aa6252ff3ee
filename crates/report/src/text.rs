//! Tables as text: for the terminal, in Markdown and in LaTeX.

use std::fmt::Write;

use crate::metrics::Metric;
use crate::report::{AgentReport, Estimate, Improvement, Report};
use crate::table::{Cell, MISSING, Row, Table, decimals};
use crate::variants::VariantTable;

/// Wider tables are left to the files.
const WIDEST: usize = 120;

/// What the terminal shows: the paper's table where it fits, the aggregates with their intervals, the probabilities of improvement.
pub fn terminal(report: &Report, colour: bool) -> String {
    let mut out = String::new();
    let games = games_grid(report);
    if grid_width(&games) <= WIDEST {
        out.push_str(&aligned(&games, colour));
        out.push('\n');
    }
    out.push_str(&aligned(&summary(report), colour));
    if let Some(improvements) = &report.improvement {
        let head =
            [format!("P({} > Y)", improvements.subject), "probability".to_string(), "games".to_string()];
        let mut rows = vec![head.map(plain).to_vec()];
        for improvement in &improvements.over {
            let cells = [
                improvement.agent.clone(),
                with_interval(&improvement.probability),
                improvement.games.to_string(),
            ];
            rows.push(cells.map(plain).to_vec());
        }
        out.push('\n');
        out.push_str(&aligned(&rows, colour));
    }
    if let Some(gains) = gains(report) {
        out.push('\n');
        out.push_str(&aligned(&gains, colour));
    }
    for table in &report.variants {
        let _ = write!(out, "\n{}\n{}", table.title, table.text());
    }
    out
}

/// Relative gains, baselines down, metrics across; none where one agent is alone.
pub fn gains(report: &Report) -> Option<Vec<Vec<Cell>>> {
    let improvements = report.improvement.as_ref()?;
    let head = std::iter::once(format!("Gain of {} over", improvements.subject));
    let superhuman = report.has_humans().then(|| "Superhuman".to_string());
    let head = head.chain(Metric::ALL.map(|metric| metric.label().to_string())).chain(superhuman);
    let mut rows = vec![head.map(plain).collect::<Vec<Cell>>()];
    for Improvement { agent, gains, .. } in &improvements.over {
        let superhuman = report.has_humans().then_some(gains.superhuman);
        let values = Metric::ALL.map(|metric| gains.aggregates[metric]).into_iter().chain(superhuman);
        let values = values.map(|gain| gain.map_or(MISSING.to_string(), percent));
        rows.push(std::iter::once(agent.clone()).chain(values).map(plain).collect());
    }
    Some(rows)
}

pub const GAINS_LEGEND: &str =
    "Relative gains over the games that both played; for the optimality gap, how much of it is closed.";

/// A relative change: 0.698 is +70%.
pub fn percent(change: f64) -> String {
    format!("{:+}%", (100.0 * change).round())
}

pub fn plain(text: impl Into<String>) -> Cell {
    Cell { text: text.into(), bold: false, underlined: false }
}

fn games_grid(report: &Report) -> Vec<Vec<Cell>> {
    let table = Table::new(report);
    let head = std::iter::once("Game").chain(table.columns.iter().map(String::as_str)).map(plain).collect();
    let body = table.rows().map(|row| std::iter::once(plain(&row.label)).chain(row.cells.clone()).collect());
    std::iter::once(head).chain(body).collect()
}

/// Agents down, metrics across, with their intervals.
pub fn summary(report: &Report) -> Vec<Vec<Cell>> {
    let head = ["Agent", "Runs", "Games"].map(String::from).into_iter();
    let superhuman = report.has_humans().then(|| "Superhuman".to_string());
    let head = head.chain(Metric::ALL.map(|metric| metric.label().to_string())).chain(superhuman);
    let mut rows = vec![head.map(plain).collect::<Vec<Cell>>()];
    for agent in &report.agents {
        let head = [agent.name.clone(), runs(agent), agent.games.len().to_string()].into_iter();
        let values = Metric::ALL.map(|metric| with_interval(&agent.aggregates[metric]));
        let superhuman = report.has_humans().then(|| agent.superhuman.to_string());
        rows.push(head.chain(values).chain(superhuman).map(plain).collect());
    }
    rows
}

fn runs(agent: &AgentReport) -> String {
    match agent.means_only {
        true => "means".to_string(),
        false if agent.fewest_runs == agent.most_runs => agent.most_runs.to_string(),
        false => format!("{}-{}", agent.fewest_runs, agent.most_runs),
    }
}

pub fn with_interval(estimate: &Estimate) -> String {
    match estimate.interval {
        Some([low, high]) => {
            format!("{} [{}, {}]", decimals(estimate.value, 3), decimals(low, 3), decimals(high, 3))
        }
        None => decimals(estimate.value, 3),
    }
}

fn widths(rows: &[Vec<Cell>]) -> Vec<usize> {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let length = |row: &Vec<Cell>, column: usize| row.get(column).map_or(0, |cell| cell.text.chars().count());
    (0..columns).map(|column| rows.iter().map(|row| length(row, column)).max().unwrap_or(0)).collect()
}

fn grid_width(rows: &[Vec<Cell>]) -> usize {
    widths(rows).iter().map(|width| width + 2).sum()
}

/// The first column to the left, the others to the right, or from the left where numbers carry intervals.
pub fn aligned(rows: &[Vec<Cell>], colour: bool) -> String {
    let widths = widths(rows);
    let mut out = String::new();
    for row in rows {
        let mut line = String::new();
        for (column, (cell, &width)) in row.iter().zip(&widths).enumerate() {
            let spaces = " ".repeat(width - cell.text.chars().count());
            let intervals =
                rows.iter().any(|row| row.get(column).is_some_and(|cell| cell.text.contains('[')));
            let text = styled(cell, colour);
            let _ = match column == 0 || intervals {
                true => write!(line, "{text}{spaces}  "),
                false => write!(line, "{spaces}{text}  "),
            };
        }
        let _ = writeln!(out, "{}", line.trim_end());
    }
    out
}

fn styled(cell: &Cell, colour: bool) -> String {
    let codes = [(cell.bold, "1"), (cell.underlined, "4")];
    let codes: Vec<&str> = codes.iter().filter(|(on, _)| *on).map(|(_, code)| *code).collect();
    match colour && !codes.is_empty() {
        true => format!("\x1b[{}m{}\x1b[0m", codes.join(";"), cell.text),
        false => cell.text.clone(),
    }
}

const LEGEND: &str = "Bold: best without look-ahead search. Underlined: best overall.";

/// The paper's table and the aggregates, for a README.
pub fn markdown(report: &Report) -> String {
    let table = Table::new(report);
    let mut out = String::new();
    let line = |out: &mut String, cells: &mut dyn Iterator<Item = String>| {
        let _ = writeln!(out, "| {} |", cells.collect::<Vec<String>>().join(" | "));
    };
    let escaped = |text: &str| text.replace('|', "\\|");
    let rule = |columns: usize| format!("| --- |{}", " ---: |".repeat(columns));
    let names = || std::iter::once("Game".to_string()).chain(table.columns.iter().map(|name| escaped(name)));
    // Markdown has no cells over several columns and one header row: the groups take it, the names come next.
    if table.groups.is_empty() {
        line(&mut out, &mut names());
        let _ = writeln!(out, "{}", rule(table.columns.len()));
    } else {
        let spanned = table.groups.iter().flat_map(|(group, columns)| {
            std::iter::once(group.to_string()).chain(vec![String::new(); columns - 1])
        });
        line(&mut out, &mut std::iter::once(String::new()).chain(spanned));
        let _ = writeln!(out, "{}", rule(table.columns.len()));
        line(&mut out, &mut names());
    }
    for row in table.rows() {
        let cells = row.cells.iter().map(|cell| {
            let text = if cell.bold { format!("**{}**", cell.text) } else { cell.text.clone() };
            if cell.underlined { format!("<u>{text}</u>") } else { text }
        });
        line(&mut out, &mut std::iter::once(label(row, "\u{2191}", "\u{2193}", &escaped)).chain(cells));
    }
    let _ = writeln!(out, "\n{LEGEND}\n");
    let whole = |out: &mut String, rows: &[Vec<Cell>]| {
        for (index, row) in rows.iter().enumerate() {
            line(out, &mut row.iter().map(|cell| escaped(&cell.text)));
            if index == 0 {
                let _ = writeln!(out, "{}", rule(row.len() - 1));
            }
        }
    };
    whole(&mut out, &summary(report));
    let _ = writeln!(out, "\nBrackets: 95% stratified bootstrap intervals.");
    if let Some(gains) = gains(report) {
        let _ = writeln!(out);
        whole(&mut out, &gains);
        let _ = writeln!(out, "\n{GAINS_LEGEND}");
    }
    for VariantTable { title, rows, .. } in &report.variants {
        let _ = writeln!(out, "\n{title}\n");
        whole(&mut out, rows);
    }
    for note in &report.notes {
        let _ = writeln!(out, "- {note}");
    }
    out
}

fn label(row: &Row, up: &str, down: &str, escape: &dyn Fn(&str) -> String) -> String {
    match row.arrow {
        Some(better_up) => format!("{} ({})", escape(&row.label), if better_up { up } else { down }),
        None => escape(&row.label),
    }
}

/// The paper's table, for `\input`; needs the package booktabs.
pub fn latex(report: &Report) -> String {
    let table = Table::new(report);
    let mut out = format!(
        "% {LEGEND} Needs \\usepackage{{booktabs}}.\n\\begin{{tabular}}{{l{}}}\n\\toprule\n",
        "r".repeat(table.columns.len())
    );
    if !table.groups.is_empty() {
        let (mut spans, mut rules, mut first) = (String::new(), String::new(), 2);
        for (group, columns) in &table.groups {
            let _ = write!(spans, " & \\multicolumn{{{columns}}}{{c}}{{{group}}}");
            if !group.is_empty() {
                let _ = write!(rules, "\\cmidrule(lr){{{first}-{}}}", first + columns - 1);
            }
            first += columns;
        }
        let _ = writeln!(out, "{} \\\\\n{rules}", spans.trim_start());
    }
    let columns: Vec<String> = table.columns.iter().map(|name| escape_latex(name)).collect();
    let _ = writeln!(out, "Game & {} \\\\\n\\midrule", columns.join(" & "));
    let rows = |out: &mut String, rows: &[Row]| {
        for row in rows {
            let cells = row.cells.iter().map(|cell| {
                let text = escape_latex(&cell.text);
                let text = if cell.bold { format!("\\textbf{{{text}}}") } else { text };
                if cell.underlined { format!("\\underline{{{text}}}") } else { text }
            });
            let cells: Vec<String> = cells.collect();
            let label = label(row, "$\\uparrow$", "$\\downarrow$", &escape_latex);
            let _ = writeln!(out, "{label} & {} \\\\", cells.join(" & "));
        }
    };
    rows(&mut out, &table.games);
    out.push_str("\\midrule\n");
    rows(&mut out, &table.summary);
    out.push_str("\\bottomrule\n\\end{tabular}\n");
    for VariantTable { title, rows, .. } in &report.variants {
        let columns = rows.first().map_or(0, |head| head.len().saturating_sub(1));
        let _ = writeln!(out, "\n% {title}\n\\begin{{tabular}}{{l{}}}\n\\toprule", "r".repeat(columns));
        for (index, row) in rows.iter().enumerate() {
            let cells: Vec<String> = row.iter().map(|cell| escape_latex(&cell.text)).collect();
            let _ = writeln!(out, "{} \\\\", cells.join(" & "));
            if index == 0 {
                out.push_str("\\midrule\n");
            }
        }
        out.push_str("\\bottomrule\n\\end{tabular}\n");
    }
    out
}

/// Text as LaTeX prints it; a minus is one, not a hyphen.
fn escape_latex(text: &str) -> String {
    if text.parse::<f64>().is_ok_and(|value| value < 0.0) {
        return format!("${text}$");
    }
    let mut out = String::new();
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\textbackslash{}"),
            '~' => out.push_str("\\textasciitilde{}"),
            '^' => out.push_str("\\textasciicircum{}"),
            '&' | '%' | '$' | '#' | '_' | '{' | '}' => {
                out.push('\\');
                out.push(c);
            }
            _ => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let cell = |text: &str, bold| Cell { text: text.to_string(), bold, underlined: bold };
        let rows =
            [vec![cell("Game", false), cell("A", false)], vec![cell("Pong", false), cell("-20.7", true)]];
        assert_eq!(aligned(&rows, false), "Game      A\nPong  -20.7\n");
        assert_eq!(aligned(&rows, true), "Game      A\nPong  \x1b[1;4m-20.7\x1b[0m\n");
    }

    #[test]
    fn latex_has_no_surprises() {
        assert_eq!(escape_latex("my_agent 100%"), "my\\_agent 100\\%");
        assert_eq!(escape_latex("#Superhuman"), "\\#Superhuman");
        assert_eq!(escape_latex("-6.7"), "$-6.7$");
    }
}
