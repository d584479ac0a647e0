//! Runs the body of a fuzz target on its seeds, on what is left of earlier searches (target/fuzz/corpus-CRATE-TARGET), and on
//! neighbours of the seeds: the same ones every time. Compiled into the tests of each crate that has fuzz targets.

use std::fs;
use std::path::{Path, PathBuf};

/// Files of a folder, in a fixed order; none if there is no such folder.
fn files(folder: &Path) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> =
        fs::read_dir(folder).into_iter().flatten().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

/// A xorshift generator: reproducible, and no dependency.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 16) as usize % limit
    }
}

/// Changes up to four bytes, and now and then the length.
fn neighbour(seed: &[u8], random: &mut Random) -> Vec<u8> {
    let mut bytes = seed.to_vec();
    match random.below(4) {
        0 if !bytes.is_empty() => bytes.truncate(random.below(bytes.len())),
        1 => bytes.extend_from_within(..random.below(bytes.len() + 1).min(64)),
        _ => {}
    }
    for _ in 0..random.below(4) + 1 {
        if !bytes.is_empty() {
            let at = random.below(bytes.len());
            bytes[at] = match random.below(3) {
                0 => bytes[at] ^ (1 << random.below(8)),
                1 => random.below(256) as u8,
                _ => [0, 1, 0x7f, 0x80, 0xff][random.below(5)],
            };
        }
    }
    bytes
}

/// `package` is the folder of the crate. An input that fails is named, a neighbour by its seed and number.
pub fn replay(package: &str, target: &str, neighbours: usize, run: impl Fn(&[u8])) {
    let package = Path::new(package);
    let name = package.file_name().unwrap().to_str().unwrap();
    let seeds = files(&package.join("fuzz/seeds").join(target));
    assert!(!seeds.is_empty(), "{target} has no seeds");
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    for seed in seeds {
        let bytes = fs::read(&seed).unwrap();
        println!("{}", seed.display());
        run(&bytes);
        for number in 0..if cfg!(miri) { 0 } else { neighbours } {
            println!("{} neighbour {number}", seed.display());
            run(&neighbour(&bytes, &mut random));
        }
    }
    for file in files(&package.join(format!("../../target/fuzz/corpus-{name}-{target}"))) {
        println!("{}", file.display());
        run(&fs::read(&file).unwrap());
    }
}
