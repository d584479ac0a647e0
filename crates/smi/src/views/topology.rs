//! `topo`: how devices are connected.

use crate::{
    device::Device,
    library::{Answer, Number, text_of},
    types::PciInfo,
};

/// Links that a device may have, CPUs and nodes that an affinity may name.
const MOST_LINKS: u32 = 36;
const CPU_WORDS: usize = 64;
const NODE_WORDS: usize = 4;

const LEGEND: &str = "
Legend:

  X    = The device itself
  SYS  = Through the link between NUMA nodes
  NODE = Between host bridges of one NUMA node
  PHB  = Through one host bridge
  PXB  = Through several PCIe switches, no host bridge
  PIX  = Through one PCIe switch
";
const LINK_LEGEND: &str = "  NV#  = By that number of NVLinks\n";
const P2P_LEGEND: &str = "
Legend:

  X    = The device itself
  OK   = Possible
  CNS  = Not with this chipset
  GNS  = Not with this GPU
  TNS  = Not with this topology
  NS   = Not supported
  U    = Unknown
";

/// The matrix of connections; `links`: NVLink, too.
pub fn matrix(devices: &[Device], links: bool) -> String {
    let names: Vec<String> = devices.iter().map(|device| format!("GPU{}", device.index)).collect();
    let mut text = format!("\t\x1b[4m{}\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m\n", names.join("\t"));
    for (row, device) in devices.iter().enumerate() {
        let cells: Vec<String> = devices
            .iter()
            .enumerate()
            .map(|(column, other)| if row == column { " X ".to_owned() } else { connection(device, other, links) })
            .collect();
        let processors = affinity(device, "nvmlDeviceGetCpuAffinityWithinScope", CPU_WORDS);
        let nodes = affinity(device, "nvmlDeviceGetMemoryAffinity", NODE_WORDS);
        let own = device.number("nvmlDeviceGetNumaNodeId").map_or_else(|_| "N/A".to_owned(), |node| node.to_string());
        text.push_str(&format!("{}\t{}\t{processors}\t{nodes}\t\t{own}\n", names[row], cells.join("\t")));
    }
    text.push_str(LEGEND);
    if links {
        text.push_str(LINK_LEGEND);
    }
    text
}

fn connection(device: &Device, other: &Device, links: bool) -> String {
    let count = if links { links_between(device, other) } else { 0 };
    if count > 0 {
        return format!("NV{count}");
    }
    let level: Answer<u32> = device.get_of("nvmlDeviceGetTopologyCommonAncestor", &[other.handle.0 as Number]);
    match level {
        Ok(0..=10) => "PIX",
        Ok(11..=20) => "PXB",
        Ok(21..=30) => "PHB",
        Ok(31..=40) => "NODE",
        Ok(_) => "SYS",
        Err(_) => "N/A",
    }
    .to_owned()
}

/// Active links that end at the other device, or at a switch that both share.
fn links_between(device: &Device, other: &Device) -> usize {
    const GPU: u32 = 0;
    const SWITCH: u32 = 2;
    const NVLINK: Number = 2;
    let reaches = device.get_of::<u32>("nvmlDeviceGetP2PStatus", &[other.handle.0 as Number, NVLINK]) == Ok(0);
    let bus = other.bus_id();
    let ends = |link: &u32| {
        let active = device.get_of::<u32>("nvmlDeviceGetNvLinkState", &[*link as Number]) == Ok(1);
        active
            && match device.get_of::<u32>("nvmlDeviceGetNvLinkRemoteDeviceType", &[*link as Number]) {
                Ok(SWITCH) => reaches,
                Ok(GPU) => {
                    let remote = device.get_of::<PciInfo>("nvmlDeviceGetNvLinkRemotePciInfo_v2", &[*link as Number]);
                    remote.map(|pci| text_of(&pci.bus_id).to_uppercase()) == bus
                }
                _ => false,
            }
    };
    (0..MOST_LINKS).filter(ends).count()
}

/// Numbers of CPUs or nodes near a device, as ranges.
fn affinity(device: &Device, name: &str, words: usize) -> String {
    const NODE_SCOPE: Number = 0;
    let mut mask = vec![0u64; words];
    let arguments = [device.handle.0 as Number, words, mask.as_mut_ptr() as Number, NODE_SCOPE];
    if device.library.run(name, &arguments).is_err() {
        return "N/A".to_owned();
    }
    ranges(&mask)
}

fn ranges(mask: &[u64]) -> String {
    let set: Vec<usize> = (0..mask.len() * 64).filter(|bit| mask[bit / 64] >> (bit % 64) & 1 != 0).collect();
    let mut parts: Vec<(usize, usize)> = Vec::new();
    for bit in set {
        match parts.last_mut() {
            Some((_, last)) if *last + 1 == bit => *last = bit,
            _ => parts.push((bit, bit)),
        }
    }
    let text =
        |(first, last): &(usize, usize)| if first == last { first.to_string() } else { format!("{first}-{last}") };
    parts.iter().map(text).collect::<Vec<_>>().join(",")
}

/// Letters of `topo -p2p` and the capabilities that they name.
pub fn capability(letter: &str) -> Option<u32> {
    ["r", "w", "n", "a", "p"].iter().position(|known| *known == letter).map(|number| number as u32)
}

pub fn peers(devices: &[Device], capability: u32) -> String {
    let names: Vec<String> = devices.iter().map(|device| format!("GPU{}", device.index)).collect();
    let mut text = format!(" \t\x1b[4m{}\t\x1b[0m\n", names.join("\t"));
    for (row, device) in devices.iter().enumerate() {
        text.push_str(&format!(" {}\t", names[row]));
        for (column, other) in devices.iter().enumerate() {
            let status =
                || device.get_of::<u32>("nvmlDeviceGetP2PStatus", &[other.handle.0 as Number, capability as Number]);
            let cell = if row == column {
                "X"
            } else {
                match status() {
                    Ok(0) => "OK",
                    Ok(1) => "CNS",
                    Ok(2) => "GNS",
                    Ok(3) => "TNS",
                    Ok(4 | 5) => "NS",
                    _ => "U",
                }
            };
            text.push_str(&format!("{cell}\t"));
        }
        text.push('\n');
    }
    text.push_str(P2P_LEGEND);
    text
}

#[cfg(test)]
mod tests {
    use super::ranges;

    #[test]
    fn a_mask_is_written_as_ranges() {
        assert_eq!(ranges(&[0xffff, 1]), "0-15,64");
        assert_eq!(ranges(&[0]), "");
        assert_eq!(ranges(&[0b101]), "0,2");
    }
}
