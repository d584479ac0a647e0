//! `nvidia-smi` over NVML: what the vendor's program of that name shows, in its layout, from any library that has NVML's
//! functions. The vendor's own asks its library for a table that only the library of the same driver has.

mod arguments;
mod change;
mod clock;
mod device;
mod fields;
mod library;
mod log;
#[cfg(test)]
mod tests;
mod types;
mod views;

use arguments::{Arguments, Command};
use device::Device;
use library::{Answer, Code, Library};
use std::{
    fs::File,
    io::{self, Write},
    process::ExitCode,
    thread,
};

/// The machine has no library of the driver.
const NO_LIBRARY: u8 = 12;
const NO_DEVICE: u8 = 6;
/// Rounds of a monitor after which its titles come again, on a terminal.
const ROUNDS_PER_TITLES: u64 = 40;

fn main() -> ExitCode {
    let arguments = match arguments::parse(std::env::args().skip(1).collect()) {
        Ok(arguments) => arguments,
        Err(refusal) => return finish(&mut io::stdout(), &refusal.text, refusal.status),
    };
    let help = match &arguments.command {
        Command::Help => Some(views::help::general()),
        Command::HelpOf(command) => Some(views::help::of(command).to_owned()),
        Command::HelpFields(subject) => Some(views::help::fields(*subject)),
        _ => None,
    };
    if let Some(text) = help {
        return finish(&mut io::stdout(), &text, 0);
    }
    let mut output: Box<dyn Write> = match arguments.file.as_ref().map(File::create) {
        None => Box::new(io::stdout()),
        Some(Ok(file)) => Box::new(file),
        Some(Err(error)) => {
            let text = format!("ERROR: {} cannot be written: {error}\n", arguments.file.unwrap_or_default());
            return finish(&mut io::stdout(), &text, 1);
        }
    };
    let Some(library) = Library::open() else {
        return finish(&mut io::stdout(), "NVIDIA-SMI found no libnvidia-ml.so.1 on this machine.\n", NO_LIBRARY);
    };
    if let Err(code) = library.run("nvmlInit_v2", &[]) {
        return finish(&mut io::stdout(), &not_started(code), change::exit_status(code));
    }
    let (text, status) = run(&library, &arguments, &mut output);
    finish(&mut output, &text, status)
}

fn finish(output: &mut dyn Write, text: &str, status: u8) -> ExitCode {
    // A reader that has gone is told by the status only.
    match output.write_all(text.as_bytes()).and_then(|()| output.flush()) {
        Ok(()) => ExitCode::from(status),
        Err(_) => ExitCode::FAILURE,
    }
}

fn not_started(code: Code) -> String {
    match code {
        Code::LIBRARY_MISMATCH => "Failed to initialize NVML: Driver/library version mismatch\n".to_owned(),
        Code::DRIVER_NOT_LOADED => {
            "NVIDIA-SMI has failed: there is no NVIDIA driver, and no node of Aviary that has one. \
                                    Make sure that one is running.\n\n"
                .to_owned()
        }
        code => format!("Failed to initialize NVML: {code}\n"),
    }
}

/// The text that is left to write, and the exit status.
fn run(library: &Library, arguments: &Arguments, output: &mut dyn Write) -> (String, u8) {
    if arguments.command == Command::Version {
        return (views::table::versions(library), 0);
    }
    let (devices, all) = match chosen(library, &arguments.devices) {
        Ok(found) => found,
        Err(code) => return (views::table::failure(code), NO_DEVICE),
    };
    if devices.is_empty() {
        return ("No devices were found\n".to_owned(), NO_DEVICE);
    }
    if let Command::Query { subject, names, .. } = &arguments.command
        && let Err(name) = views::csv::columns(*subject, names)
    {
        return (format!("Field \"{name}\" is not a valid field to query.\n\n"), 2);
    }
    if let Command::Change { option, value } = &arguments.command {
        return change::apply(&devices, option, value);
    }
    let mut round = 0;
    loop {
        let text = once(library, arguments, &devices, all, round);
        round += 1;
        let last = arguments.interval.is_none() || arguments.rounds.is_some_and(|rounds| round >= rounds);
        if last {
            return (text, 0);
        }
        if output.write_all(text.as_bytes()).and_then(|()| output.flush()).is_err() {
            return (String::new(), 1);
        }
        thread::sleep(arguments.interval.unwrap_or_default());
    }
}

/// The devices that are named, or all, and how many there are.
fn chosen<'a>(library: &'a Library, names: &[String]) -> Answer<(Vec<Device<'a>>, usize)> {
    let all = Device::all(library)?;
    let count = all.len();
    let devices = match names {
        [] => all.into_iter().collect::<Answer<Vec<_>>>()?,
        names => names.iter().map(|name| Device::by_name(library, name)).collect::<Answer<Vec<_>>>()?,
    };
    Ok((devices, count))
}

/// The text of one round.
fn once(library: &Library, arguments: &Arguments, devices: &[Device], all: usize, round: u64) -> String {
    match &arguments.command {
        Command::List => views::table::list(devices),
        Command::Log { sections, xml: true } => log::xml(library, devices, all, sections),
        Command::Log { sections, xml: false } => log::text(library, devices, all, sections),
        Command::Query { subject, names, format } => {
            let columns = views::csv::columns(*subject, names).unwrap_or_default();
            let header = if round == 0 { views::csv::header(&columns, *format) } else { String::new() };
            header + &views::csv::lines(*subject, &columns, devices, *format)
        }
        Command::Monitor { letters, stamps, processes } => {
            let titled = round.is_multiple_of(ROUNDS_PER_TITLES);
            let lines: String = match processes {
                true => devices.iter().map(|device| views::pmon::lines(device, letters, *stamps)).collect(),
                false => devices.iter().map(|device| views::dmon::line(device, letters, *stamps)).collect(),
            };
            let titles = match (titled, processes) {
                (false, _) => String::new(),
                (true, true) => views::pmon::titles(letters, *stamps),
                (true, false) => views::dmon::titles(letters, *stamps),
            };
            titles + &lines
        }
        Command::Matrix { links } => views::topology::matrix(devices, *links),
        Command::Peers { capability } => views::topology::peers(devices, *capability),
        _ => views::table::summary(library, devices),
    }
}
