//! The only place that prints. What a command is asked for goes to stdout, what it is doing to stderr.

use sendonce_devstack::Progress;

#[expect(clippy::print_stderr, reason = "a command-line tool tells what it is doing")]
pub fn tell(line: &str) {
    eprintln!("{line}");
}

#[expect(clippy::print_stdout, reason = "a command-line tool prints its result")]
pub fn print(line: &str) {
    println!("{line}");
}

pub fn progress() -> Progress {
    Progress::new(|line| tell(&format!("devstack: {line}")))
}

/// Columns as wide as their widest cell.
pub fn print_table(rows: &[Vec<String>]) {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| rows.iter().filter_map(|row| row.get(column)).map(String::len).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    for row in rows {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
        print(cells.collect::<Vec<_>>().join("  ").trim_end());
    }
}
