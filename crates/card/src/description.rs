//! The description of an image, as `fpga/build` writes it beside the image.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use thiserror::Error;

/// Version of the image's interface that this crate speaks; `fpga/simulation/image.h` has it, too.
pub const ABI: u32 = 1;
/// Ports that a monitor has at most.
pub const MAX_PORTS: usize = 16;

/// The description of an image cannot be used.
///
/// ```
/// use aviary_card::ImageDescription;
/// use std::path::Path;
///
/// let error = ImageDescription::read(Path::new("/no/such/image.json")).unwrap_err();
/// assert!(error.to_string().starts_with("/no/such/image.json: "));
/// ```
#[derive(Debug, Error, displaydoc::Display)]
pub enum DescriptionError {
    /// {path}: {source}
    Read { path: PathBuf, source: std::io::Error },
    /// {path}: {source}
    Parse { path: PathBuf, source: serde_json::Error },
    /// {path}: the image has interface version {found}, this program needs {ABI:}; build it again with fpga/build
    Abi { path: PathBuf, found: u32 },
    /// {path}: the image has {found} ports; expected 1 to {MAX_PORTS:}
    Ports { path: PathBuf, found: usize },
    /// {path}: the accelerators {first} and {second} have the same guid {guid}, but are not the same
    Guid { path: PathBuf, guid: String, first: String, second: String },
    /// {path}: {parameter} of the model is 0; expected at least 1
    Model { path: PathBuf, parameter: &'static str },
}

/// The handling of a register while its virtual accelerator is queued.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RegisterKind {
    /// Idempotent: cached, and written again when the virtual accelerator is scheduled.
    Plain,
    /// Read-only: copied at a switch.
    Status,
    /// With an effect: never cached, postponed.
    Effect,
}

/// A register of an accelerator's page.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct RegisterDescription {
    /// Offset in the page, a multiple of 8.
    pub at: u32,
    pub kind: RegisterKind,
    /// A client's write after which all of these bits are set, and before which they were not, starts a job; one that clears any
    /// of them ends it. Of a plain register only; 0: none.
    #[serde(default)]
    pub starts: u64,
}

/// The accelerator at a port.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct PortDescription {
    pub name: String,
    pub guid: String,
    pub summary: String,
    pub clock_mhz: u32,
    /// Lines that its saved state takes.
    pub state_lines: u32,
    pub registers: BTreeMap<String, RegisterDescription>,
}

/// Parameters of the model of link, IOMMU and host; times in cycles.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub struct ModelParameters {
    pub read_latency: u64,
    pub write_latency: u64,
    /// Lines that the link carries per 1,000 cycles, in each direction.
    pub lines_per_1000_cycles: u64,
    /// Requests that the link takes before it makes the card wait, in each direction.
    pub requests: usize,
    pub tlb_entries: usize,
    pub walk_cycles: u64,
    pub mmio_read_cycles: u64,
    pub mmio_write_cycles: u64,
}

/// An image.
///
/// ```no_run
/// use aviary_card::ImageDescription;
/// use std::path::Path;
///
/// let description = ImageDescription::read(Path::new("build/all.json"))?;
/// for port in &description.ports {
///     println!("{}: {} at {} MHz", port.name, port.summary, port.clock_mhz);
/// }
/// # Ok::<(), aviary_card::DescriptionError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct ImageDescription {
    pub abi: u32,
    pub name: String,
    pub ports: Vec<PortDescription>,
    pub arity: u32,
    pub arbiter: String,
    /// The pass-through build: one accelerator without a monitor.
    pub bypass: bool,
    /// Pages at the beginning of the MMIO window that the shell keeps for itself.
    pub shell_pages: u32,
    pub model: ModelParameters,
}

impl ImageDescription {
    /// Reads and checks the description beside an image.
    ///
    /// # Errors
    /// See [`DescriptionError`].
    pub fn read(path: &Path) -> Result<Self, DescriptionError> {
        let text =
            std::fs::read_to_string(path).map_err(|source| DescriptionError::Read { path: path.into(), source })?;
        Self::parse(&text, path)
    }

    fn parse(text: &str, path: &Path) -> Result<Self, DescriptionError> {
        let path = || path.to_path_buf();
        // The version first: with another one the rest may not be understood.
        #[derive(Deserialize)]
        struct Versioned {
            abi: u32,
        }
        let Versioned { abi } =
            serde_json::from_str(text).map_err(|source| DescriptionError::Parse { path: path(), source })?;
        if abi != ABI {
            return Err(DescriptionError::Abi { path: path(), found: abi });
        }
        let image: Self =
            serde_json::from_str(text).map_err(|source| DescriptionError::Parse { path: path(), source })?;
        if !(1..=MAX_PORTS).contains(&image.ports.len()) {
            return Err(DescriptionError::Ports { path: path(), found: image.ports.len() });
        }
        for (index, port) in image.ports.iter().enumerate() {
            if let Some(other) = image.ports[..index].iter().find(|other| other.guid == port.guid && *other != port) {
                let (first, second) = (other.name.clone(), port.name.clone());
                return Err(DescriptionError::Guid { path: path(), guid: port.guid.clone(), first, second });
            }
        }
        let model = &image.model;
        for (parameter, value) in [
            ("lines_per_1000_cycles", model.lines_per_1000_cycles),
            ("requests", model.requests as u64),
            ("tlb_entries", model.tlb_entries as u64),
        ] {
            if value == 0 {
                return Err(DescriptionError::Model { path: path(), parameter });
            }
        }
        Ok(image)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(ports: &str, abi: u32) -> String {
        format!(
            r#"{{"abi": {abi}, "name": "x", "ports": [{ports}], "arity": 2, "arbiter": "round-robin", "bypass": false,
                "shell_pages": 0, "model": {{"read_latency": 100, "write_latency": 100, "lines_per_1000_cycles": 600,
                "requests": 64, "tlb_entries": 512, "walk_cycles": 40, "mmio_read_cycles": 400, "mmio_write_cycles": 100}}}}"#
        )
    }

    fn port(name: &str, lines: u32) -> String {
        format!(
            r#"{{"name": "{name}", "guid": "g", "summary": "", "clock_mhz": 400, "state_lines": {lines},
                "registers": {{"BASE": {{"at": 64, "kind": "plain"}}}}}}"#
        )
    }

    fn parse(ports: &str, abi: u32) -> Result<ImageDescription, DescriptionError> {
        ImageDescription::parse(&text(ports, abi), Path::new("x.json"))
    }

    #[test]
    fn description_of_an_image_is_read() {
        let image = parse(&[port("mb", 1), port("mb", 1)].join(","), ABI).unwrap();
        assert_eq!(image.ports.len(), 2);
        assert_eq!(
            image.ports[0].registers["BASE"],
            RegisterDescription { at: 64, kind: RegisterKind::Plain, starts: 0 }
        );
    }

    #[test]
    fn image_with_another_interface_is_refused() {
        assert!(matches!(parse(&port("mb", 1), ABI + 1), Err(DescriptionError::Abi { found, .. }) if found == ABI + 1));
    }

    #[test]
    fn image_with_more_ports_than_a_monitor_has_is_refused() {
        let ports = vec![port("mb", 1); MAX_PORTS + 1].join(",");
        assert!(matches!(parse(&ports, ABI), Err(DescriptionError::Ports { found: 17, .. })));
        assert!(matches!(parse("", ABI), Err(DescriptionError::Ports { found: 0, .. })));
    }

    #[test]
    fn accelerators_of_one_guid_that_differ_are_refused() {
        let ports = [port("mb", 1), port("mb", 2)].join(",");
        assert!(matches!(parse(&ports, ABI), Err(DescriptionError::Guid { .. })));
    }
}
