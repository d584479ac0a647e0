//! The command line.

use crate::log::{SECTIONS, Section};
use crate::views::csv::{Format, Subject};
use crate::views::dmon::{self, Stamps};
use crate::views::{pmon, topology};
use std::time::Duration;

/// The kind of output, or a change.
#[derive(Debug, Clone, PartialEq)]
pub enum Command {
    Help,
    /// Help of `dmon`, `pmon`, `topo`.
    HelpOf(&'static str),
    HelpFields(Subject),
    Version,
    List,
    Summary,
    Log {
        sections: Vec<Section>,
        xml: bool,
    },
    Query {
        subject: Subject,
        names: String,
        format: Format,
    },
    Monitor {
        letters: String,
        stamps: Stamps,
        processes: bool,
    },
    Matrix {
        links: bool,
    },
    Peers {
        capability: u32,
    },
    Change {
        option: String,
        value: String,
    },
}

#[derive(Debug, Clone, PartialEq)]
pub struct Arguments {
    pub command: Command,
    /// Names of devices; empty: all.
    pub devices: Vec<String>,
    pub file: Option<String>,
    /// Time between two rounds; `None`: one round.
    pub interval: Option<Duration>,
    /// Rounds of a monitor; `None`: without end.
    pub rounds: Option<u64>,
}

/// Text and exit status of a refusal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    pub text: String,
    pub status: u8,
}

const INVALID_ARGUMENT: u8 = 2;
const UNKNOWN_OPTION: u8 = 255;

fn refuse<T>(status: u8, text: impl Into<String>) -> Result<T, Refusal> {
    Err(Refusal { text: text.into(), status })
}

fn unknown<T>(option: &str) -> Result<T, Refusal> {
    refuse(UNKNOWN_OPTION, format!("ERROR: Option {option} is not recognized. Please run 'nvidia-smi -h'.\n\n"))
}

/// The refusal of a monitor's option.
fn not_processed<T>(why: &str) -> Result<T, Refusal> {
    refuse(UNKNOWN_OPTION, format!("{why}\nFailed to process command line \n\n"))
}

/// Options that change a device: short, long, and whether they have a value.
pub const CHANGES: [(&str, &str, bool); 16] = [
    ("-pm", "--persistence-mode", true),
    ("-e", "--ecc-config", true),
    ("-p", "--reset-ecc-errors", true),
    ("-c", "--compute-mode", true),
    ("-pl", "--power-limit", true),
    ("-lgc", "--lock-gpu-clocks", true),
    ("-rgc", "--reset-gpu-clocks", false),
    ("-lmc", "--lock-memory-clocks", true),
    ("-rmc", "--reset-memory-clocks", false),
    ("-ac", "--applications-clocks", true),
    ("-rac", "--reset-applications-clocks", false),
    ("-am", "--accounting-mode", true),
    ("-caa", "--clear-accounted-apps", false),
    ("-mig", "--multi-instance-gpu", true),
    ("-gtt", "--gpu-target-temp", true),
    ("--gom", "--gom", true),
];

/// The words behind the program's name.
struct Words {
    words: std::vec::IntoIter<String>,
}

impl Words {
    /// The next option with its value, if it was written with `=`.
    fn option(&mut self) -> Option<(String, Option<String>)> {
        let word = self.words.next()?;
        Some(match word.split_once('=') {
            Some((option, value)) if word.starts_with('-') => (option.to_owned(), Some(value.to_owned())),
            _ => (word, None),
        })
    }

    fn value(&mut self, option: &str, given: Option<String>) -> Result<String, Refusal> {
        match given.or_else(|| self.words.next()) {
            Some(value) => Ok(value),
            None => refuse(
                UNKNOWN_OPTION,
                format!("ERROR: Option {option} is missing its value. Please run 'nvidia-smi -h' for help.\n\n"),
            ),
        }
    }
}

fn names(list: &str) -> Vec<String> {
    list.split(',').map(|name| name.trim().to_owned()).filter(|name| !name.is_empty()).collect()
}

fn number(option: &str, text: &str) -> Result<u64, Refusal> {
    match text.trim().parse() {
        Ok(number) if number > 0 => Ok(number),
        _ => refuse(INVALID_ARGUMENT, format!("ERROR: {text} is no value for option {option}.\n\n")),
    }
}

pub fn parse(words: Vec<String>) -> Result<Arguments, Refusal> {
    let mut words = Words { words: words.into_iter() };
    match words.words.as_slice().first().map(String::as_str) {
        Some("dmon") => monitor(words, "dmon"),
        Some("pmon") => monitor(words, "pmon"),
        Some("topo") => topology(words),
        _ => general(&mut words),
    }
}

fn general(words: &mut Words) -> Result<Arguments, Refusal> {
    let mut all =
        Arguments { command: Command::Summary, devices: Vec::new(), file: None, interval: None, rounds: None };
    let (mut query, mut xml, mut sections) = (false, false, None);
    let (mut selective, mut format) = (None, Format::default());
    while let Some((option, given)) = words.option() {
        match option.as_str() {
            "-h" | "--help" => all.command = Command::Help,
            "--version" => all.command = Command::Version,
            "-L" | "--list-gpus" => all.command = Command::List,
            "--help-query-gpu" => all.command = Command::HelpFields(Subject::Devices),
            "--help-query-compute-apps" => all.command = Command::HelpFields(Subject::Processes),
            "--help-query-supported-clocks" => all.command = Command::HelpFields(Subject::SupportedClocks),
            "-q" | "--query" => query = true,
            "-x" | "--xml-format" => xml = true,
            "-d" | "--display" => sections = Some(display(&words.value(&option, given)?)?),
            "-i" | "--id" => all.devices = names(&words.value(&option, given)?),
            "-f" | "--filename" => all.file = Some(words.value(&option, given)?),
            "-l" | "--loop" => {
                all.interval = Some(Duration::from_secs(number(&option, &words.value(&option, given)?)?))
            }
            "-lms" | "--loop-ms" => {
                all.interval = Some(Duration::from_millis(number(&option, &words.value(&option, given)?)?))
            }
            "--query-gpu" => selective = Some((Subject::Devices, words.value(&option, given)?)),
            "--query-compute-apps" => selective = Some((Subject::Processes, words.value(&option, given)?)),
            "--query-supported-clocks" => selective = Some((Subject::SupportedClocks, words.value(&option, given)?)),
            "--format" => match Format::parse(&words.value(&option, given)?) {
                Some(parsed) => format = parsed,
                None => return refuse(INVALID_ARGUMENT, "Format modifier is not recognized.\n"),
            },
            option => match CHANGES.iter().find(|(short, long, _)| *short == option || *long == option) {
                Some((_, long, valued)) => {
                    let value = if *valued { words.value(option, given)? } else { String::new() };
                    all.command = Command::Change { option: (*long).to_owned(), value };
                }
                None => return unknown(option),
            },
        }
    }
    if let Some((subject, names)) = selective {
        all.command = Command::Query { subject, names, format };
    } else if query || xml {
        if xml && sections.is_some() {
            return refuse(
                INVALID_ARGUMENT,
                "Invalid combination of input arguments: --display/-d flags can not be combined with -x/--xml-format flags.\n",
            );
        }
        all.command = Command::Log { sections: sections.unwrap_or_default(), xml };
    } else if sections.is_some() {
        return refuse(
            INVALID_ARGUMENT,
            "Invalid combination of input arguments. Specify -q/--query and -d/--display to run a filtered query.  \
             Please run 'nvidia-smi -h' for help.\n\n",
        );
    }
    Ok(all)
}

fn display(list: &str) -> Result<Vec<Section>, Refusal> {
    let find = |name: String| {
        let known = SECTIONS.iter().find(|(word, _)| word.eq_ignore_ascii_case(&name)).map(|(_, section)| *section);
        known.ok_or_else(|| Refusal { text: "Failed to parse --display/-d flags\n".into(), status: INVALID_ARGUMENT })
    };
    names(list).into_iter().map(find).collect()
}

fn monitor(mut words: Words, name: &'static str) -> Result<Arguments, Refusal> {
    let processes = name == "pmon";
    words.words.next();
    let mut letters = if processes { "u" } else { "puc" }.to_owned();
    let mut stamps = Stamps::default();
    let mut all = Arguments {
        command: Command::HelpOf(name),
        devices: Vec::new(),
        file: None,
        interval: Some(Duration::from_secs(1)),
        rounds: None,
    };
    while let Some((option, given)) = words.option() {
        match option.as_str() {
            "-h" | "--help" => return Ok(all),
            "-i" | "--id" => all.devices = names(&words.value(&option, given)?),
            "-d" | "--delay" => {
                all.interval = Some(Duration::from_secs(number(&option, &words.value(&option, given)?)?))
            }
            "-c" | "--count" => all.rounds = Some(number(&option, &words.value(&option, given)?)?),
            "-f" | "--filename" => all.file = Some(words.value(&option, given)?),
            "-s" | "--select" => {
                letters = words.value(&option, given)?;
                let known = if processes { pmon::is_selection(&letters) } else { dmon::is_selection(&letters) };
                if !known {
                    return not_processed("Failed to find any metric to display");
                }
            }
            "-o" | "--options" => {
                let text = words.value(&option, given)?;
                let Some(parsed) = Stamps::parse(&text) else { return not_processed("Error in parsing options") };
                stamps = parsed;
            }
            option => return unknown(option),
        }
    }
    all.command = Command::Monitor { letters, stamps, processes };
    Ok(all)
}

fn topology(mut words: Words) -> Result<Arguments, Refusal> {
    words.words.next();
    let mut all =
        Arguments { command: Command::HelpOf("topo"), devices: Vec::new(), file: None, interval: None, rounds: None };
    while let Some((option, given)) = words.option() {
        match option.as_str() {
            "-h" | "--help" => all.command = Command::HelpOf("topo"),
            "-m" | "--matrix" => all.command = Command::Matrix { links: true },
            "-mp" | "--matrix_pci" => all.command = Command::Matrix { links: false },
            "-i" | "--id" => all.devices = names(&words.value(&option, given)?),
            "-p2p" | "--p2pstatus" => {
                let letter = words.value(&option, given)?;
                let Some(capability) = topology::capability(&letter) else {
                    return refuse(INVALID_ARGUMENT, format!("ERROR: {letter} is no value for option {option}.\n\n"));
                };
                all.command = Command::Peers { capability };
            }
            option => return refuse(INVALID_ARGUMENT, format!("Option \"{option}\" is not recognized.\n")),
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(line: &str) -> Result<Arguments, Refusal> {
        parse(line.split_whitespace().map(str::to_owned).collect())
    }

    #[test]
    fn options_have_values_behind_an_equals_sign_or_a_space() {
        let query = |line: &str| of(line).unwrap().command;
        let expected = Command::Query {
            subject: Subject::Devices,
            names: "index,name".into(),
            format: Format { no_header: true, no_units: false },
        };
        assert_eq!(query("--query-gpu=index,name --format=csv,noheader"), expected);
        assert_eq!(query("--query-gpu index,name --format csv,noheader"), expected);
        assert_eq!(
            of("-q -d memory,ECC").unwrap().command,
            Command::Log { sections: vec![Section::Memory, Section::Ecc], xml: false }
        );
        assert_eq!(of("-lms 200").unwrap().interval, Some(Duration::from_millis(200)));
        assert_eq!(of("-i 0,GPU-1").unwrap().devices, ["0", "GPU-1"]);
    }

    #[test]
    fn refusals_have_the_vendors_status() {
        let refused = |line: &str| of(line).unwrap_err().status;
        assert_eq!(refused("--nosuch"), 255);
        assert_eq!(refused("frobnicate"), 255);
        assert_eq!(refused("--query-gpu=index --format=tsv"), 2);
        assert_eq!(refused("-q -d NOSUCH"), 2);
        assert_eq!(refused("-q -x -d MEMORY"), 2);
        assert_eq!(
            of("--nosuch").unwrap_err().text,
            "ERROR: Option --nosuch is not recognized. Please run 'nvidia-smi -h'.\n\n"
        );
    }

    #[test]
    fn monitors_have_options_of_their_own() {
        let monitor = of("dmon -c 1 -s pm -o DT").unwrap();
        assert_eq!(monitor.rounds, Some(1));
        let stamps = Stamps { date: true, time: true };
        assert_eq!(monitor.command, Command::Monitor { letters: "pm".into(), stamps, processes: false });
        assert_eq!(of("pmon -s x").unwrap_err().status, 255);
        assert_eq!(of("topo -z").unwrap_err().text, "Option \"-z\" is not recognized.\n");
        assert_eq!(of("topo -m").unwrap().command, Command::Matrix { links: true });
        assert_eq!(of("topo -p2p n").unwrap().command, Command::Peers { capability: 2 });
    }
}
