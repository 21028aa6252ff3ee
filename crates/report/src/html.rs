//! The report as one page that needs nothing else: tables, figures, notes, sources, and the data.

use std::fmt::Write;

use crate::draw::{dark_style, escape, svg};
use crate::figures::Figure;
use crate::report::Report;
use crate::table::{Cell, Row, Table};
use crate::text::{GAINS_LEGEND, gains, latex, markdown, summary};
use crate::variants::VariantTable;

const STYLE: &str = "
:root{color-scheme:light dark;--paper:#fff;--ink:#1a1a1a;--muted:#5c5c5c;--grid:#ddd;--stripe:#f5f5f5}
@media (prefers-color-scheme:dark){:root{--paper:#16181c;--ink:#eee;--muted:#aaa;--grid:#3a3d44;--stripe:#1e2126}}
body{margin:0 auto;padding:1.5rem;max-width:66rem;background:var(--paper);color:var(--ink);font:15px/1.5 Helvetica,Arial,sans-serif}
h1{font-size:1.6rem;margin:0 0 .3rem}h2{font-size:1.15rem;margin:2rem 0 .5rem}
p,figcaption,li{color:var(--muted)}
.wide{overflow-x:auto}
table{border-collapse:collapse;font-size:.86rem;font-variant-numeric:tabular-nums;white-space:nowrap}
th,td{padding:.18rem .6rem;text-align:right}th:first-child,td:first-child{text-align:left}
thead th{border-bottom:1px solid var(--muted)}tbody tr:nth-child(even){background:var(--stripe)}
thead tr.groups th{text-align:center;border:0}
tbody.summary tr:first-child td{border-top:1px solid var(--muted)}
figure{margin:1rem 0 2rem}figure svg{max-width:100%;height:auto}
pre{overflow:auto;max-height:24rem;padding:.7rem;background:var(--stripe);font-size:.8rem}
summary{cursor:pointer}
";

pub fn html(report: &Report, figures: &[Figure], json: &str) -> String {
    let mut out = format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>iris report</title>\n\
         <style>{STYLE}{}</style>\n</head>\n<body>\n<h1>Report</h1>\n",
        dark_style()
    );
    let settings = &report.settings;
    let _ = writeln!(
        out,
        "<p>{}, {}. Intervals are 95% percentile intervals of a stratified bootstrap with {} replicates \
         (seed {}, generator {}).</p>",
        counted(report.agents.len(), "agent"),
        counted(report.games.len(), "game"),
        settings.replicates,
        settings.seed,
        format!("{:?}", settings.rng).to_lowercase()
    );
    if !report.notes.is_empty() {
        out.push_str("<h2>Notes</h2>\n<ul>\n");
        for note in &report.notes {
            let _ = writeln!(out, "<li>{}</li>", escape(note));
        }
        out.push_str("</ul>\n");
    }
    out.push_str("<h2>Aggregates</h2>\n<div class=\"wide\">");
    rows(&mut out, &summary(report));
    out.push_str("</div>\n");
    if let Some(gains) = gains(report) {
        out.push_str("<h2>Relative gains</h2>\n<div class=\"wide\">");
        rows(&mut out, &gains);
        let _ = writeln!(out, "</div>\n<p>{GAINS_LEGEND}</p>");
    }
    out.push_str("<h2>Figures</h2>\n");
    for figure in figures {
        let _ = writeln!(
            out,
            "<figure>\n{}<figcaption>{}</figcaption>\n</figure>",
            svg(&figure.drawing, false),
            escape(&figure.caption)
        );
    }
    out.push_str("<h2>Scores per game</h2>\n<div class=\"wide\">");
    games_table(&mut out, &Table::new(report));
    out.push_str(
        "</div>\n<p>Mean over runs. Bold: best without look-ahead search. Underlined: best overall.</p>\n",
    );
    for VariantTable { title, rows: table, .. } in &report.variants {
        let _ = write!(out, "<h2>{}</h2>\n<div class=\"wide\">", escape(title));
        rows(&mut out, table);
        out.push_str("</div>\n");
    }
    out.push_str("<h2>Sources</h2>\n<ul>\n");
    for agent in &report.agents {
        let _ = writeln!(out, "<li>{}: {}</li>", escape(&agent.name), escape(&agent.source));
    }
    out.push_str("</ul>\n<h2>To take along</h2>\n");
    for (name, text) in [("Markdown", markdown(report)), ("LaTeX", latex(report)), ("JSON", json.to_string())]
    {
        let _ = writeln!(out, "<details><summary>{name}</summary><pre>{}</pre></details>", escape(&text));
    }
    out.push_str("</body>\n</html>\n");
    out
}

/// "1 game", "2 games".
fn counted(count: usize, thing: &str) -> String {
    format!("{count} {thing}{}", if count == 1 { "" } else { "s" })
}

/// A table whose first row is its header.
fn rows(out: &mut String, rows: &[Vec<Cell>]) {
    for (index, row) in rows.iter().enumerate() {
        let tag = if index == 0 { "th" } else { "td" };
        let cells: String = row.iter().map(|cell| format!("<{tag}>{}</{tag}>", escape(&cell.text))).collect();
        let _ = match index {
            0 => write!(out, "<table>\n<thead><tr>{cells}</tr></thead>\n<tbody>\n"),
            _ => writeln!(out, "<tr>{cells}</tr>"),
        };
    }
    out.push_str("</tbody>\n</table>");
}

fn games_table(out: &mut String, table: &Table) {
    let columns: String = table.columns.iter().map(|name| format!("<th>{}</th>", escape(name))).collect();
    let group = |(group, columns): &(&str, usize)| format!("<th colspan=\"{columns}\">{group}</th>");
    let groups: String = table.groups.iter().map(group).collect();
    let groups =
        if groups.is_empty() { groups } else { format!("<tr class=\"groups\"><th></th>{groups}</tr>\n") };
    let _ = write!(out, "<table>\n<thead>{groups}<tr><th>Game</th>{columns}</tr></thead>\n<tbody>\n");
    table.games.iter().for_each(|row| table_row(out, row));
    out.push_str("</tbody>\n<tbody class=\"summary\">\n");
    table.summary.iter().for_each(|row| table_row(out, row));
    out.push_str("</tbody>\n</table>");
}

fn table_row(out: &mut String, row: &Row) {
    let arrow = row.arrow.map_or("", |up| if up { " \u{2191}" } else { " \u{2193}" });
    let cells: String = row
        .cells
        .iter()
        .map(|cell| {
            let text = escape(&cell.text);
            let text = if cell.bold { format!("<b>{text}</b>") } else { text };
            let text = if cell.underlined { format!("<u>{text}</u>") } else { text };
            format!("<td>{text}</td>")
        })
        .collect();
    let _ = writeln!(out, "<tr><td>{}{arrow}</td>{cells}</tr>", escape(&row.label));
}
