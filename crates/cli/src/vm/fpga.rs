//! Accelerators of FPGA cards for a VM: sockets that a node serves, or processes that this command starts.

use crate::fpga::CARD_VARIABLE;
use anyhow::{Context, bail};
use aviary_node::PrivateDir;
use clap::Args;
use std::{
    ffi::OsString,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

/// The process says so, or ends: on a machine that is busy, too.
const LISTEN_POLL_INTERVAL: Duration = Duration::from_millis(10);

#[derive(Args)]
pub struct FpgaArguments {
    /// Give the VM an accelerator of an FPGA card (repeatable): unix:PATH, the socket of one in the node's configuration
    /// ([vms.VM.fpga]), or an accelerator's type by its GUID, of the card --card.
    #[arg(long, value_name = "unix:PATH|TYPE")]
    fpga: Vec<String>,
    /// The card of types: the socket of `aviary fpga card`, or a node's.
    #[arg(long, value_name = "unix:PATH", env = CARD_VARIABLE)]
    card: Option<String>,
}

/// Sockets for QEMU, and what is behind them.
#[derive(Default)]
pub struct Accelerators {
    pub sockets: Vec<PathBuf>,
    /// Command lines of those that are no node's.
    own: Vec<Vec<OsString>>,
    /// They end when QEMU does, or has not begun.
    processes: Vec<Child>,
    /// Holds the sockets of `own`.
    _directory: Option<PrivateDir>,
}

impl FpgaArguments {
    /// `starts`: not only their names.
    pub fn settle(&self, starts: bool) -> anyhow::Result<Accelerators> {
        let mut all = Accelerators::default();
        for (place, wanted) in self.fpga.iter().enumerate() {
            if let Some(path) = wanted.strip_prefix("unix:") {
                if starts && !Path::new(path).exists() {
                    bail!(
                        "--fpga {wanted}: there is no such socket: expected that of an accelerator in the node's configuration ([vms.VM.fpga]), while the node runs"
                    );
                }
                all.sockets.push(path.into());
                continue;
            }
            let Some(card) = &self.card else {
                bail!(
                    "--fpga {wanted}: whose? Name the card's socket by --card unix:PATH, or give unix:PATH of an accelerator of the node"
                )
            };
            if all._directory.is_none() && starts {
                all._directory = Some(PrivateDir::create()?);
            }
            let folder = all._directory.as_ref().map_or(Path::new("/run/aviary"), PrivateDir::path);
            let socket = folder.join(format!("fpga{place}.sock"));
            let listen = format!("unix:{}", socket.display());
            let words = ["fpga-device", wanted, "--card", card, "--listen", &listen];
            all.own.push(words.map(OsString::from).to_vec());
            all.sockets.push(socket);
        }
        Ok(all)
    }
}

impl Drop for Accelerators {
    fn drop(&mut self) {
        // One whose VMM never came would keep its accelerator.
        for child in &mut self.processes {
            // It has ended already, or does so now.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Accelerators {
    /// Starts the processes of those that are no node's; they listen when this returns.
    pub fn start(&mut self) -> anyhow::Result<()> {
        for words in &self.own {
            let mut child = Command::new(std::env::current_exe()?).args(words).stdin(Stdio::null()).spawn()?;
            let socket = words.last().and_then(|word| word.to_str()).and_then(|word| word.strip_prefix("unix:"));
            let socket = Path::new(socket.context("a socket has no path")?);
            while !socket.exists() {
                if let Some(status) = child.try_wait()? {
                    bail!("an accelerator of the VM cannot be had ({status}): the lines above say why");
                }
                std::thread::sleep(LISTEN_POLL_INTERVAL);
            }
            self.processes.push(child);
        }
        Ok(())
    }

    pub fn are_own(&self) -> bool {
        !self.own.is_empty()
    }

    /// What is to be started before QEMU, for shells.
    pub fn printed(&self) -> String {
        let line = |words: &Vec<OsString>| {
            let words: Vec<_> = words.iter().map(|word| word.to_string_lossy().into_owned()).collect();
            format!("aviary {} &\n", words.join(" "))
        };
        self.own.iter().map(line).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_need_a_card_and_sockets_none() {
        let arguments = |fpga: &[&str], card: Option<&str>| FpgaArguments {
            fpga: fpga.iter().map(|word| (*word).to_owned()).collect(),
            card: card.map(str::to_owned),
        };
        let all = arguments(&["unix:/run/x"], None).settle(false).unwrap();
        assert_eq!((&all.sockets[..], all.own.len()), (&[PathBuf::from("/run/x")][..], 0));
        let told = arguments(&["unix:/none/x"], None).settle(true).err().unwrap().to_string();
        assert!(told.contains("no such socket"), "{told}");
        assert!(arguments(&["6c6c"], None).settle(false).is_err());
        let all = arguments(&["unix:/run/x", "6c6c"], Some("unix:/run/card")).settle(false).unwrap();
        assert_eq!(all.sockets[1], Path::new("/run/aviary/fpga1.sock"));
        assert_eq!(
            all.printed(),
            "aviary fpga-device 6c6c --card unix:/run/card --listen unix:/run/aviary/fpga1.sock &\n"
        );
    }
}
