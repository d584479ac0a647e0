//! Compiles a policy's C source to an object, with an installed clang.

use crate::error::{CompilerMessages, PolicyError};
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

const HEADER: &str = include_str!("../../../../policies/aviary_policy.h");
/// Longest time for a compilation.
const COMPILER_TIMEOUT: Duration = Duration::from_secs(20);

fn compiler() -> Result<PathBuf, PolicyError> {
    if let Some(named) = std::env::var_os("AVIARY_CLANG") {
        let path = PathBuf::from(named);
        return if works(&path) { Ok(path) } else { Err(PolicyError::NoCompiler(path.display().to_string())) };
    }
    let names = || std::iter::once("clang".to_owned()).chain((12..40).rev().map(|version| format!("clang-{version}")));
    let folders: Vec<PathBuf> =
        std::env::var_os("PATH").iter().flat_map(|path| std::env::split_paths(path).collect::<Vec<_>>()).collect();
    names()
        .flat_map(|name| folders.iter().map(move |folder| folder.join(&name)))
        .find(|path| path.is_file() && works(path))
        .ok_or_else(|| PolicyError::NoCompiler("clang, clang-39 ... clang-12".into()))
}

/// True if this clang runs and knows the target.
fn works(clang: &Path) -> bool {
    let output = Command::new(clang).arg("-print-targets").stdin(Stdio::null()).stderr(Stdio::null()).output();
    output.is_ok_and(|output| String::from_utf8_lossy(&output.stdout).contains("bpf"))
}

/// Compiles a source file and returns the object's bytes.
pub fn compile(source: &Path) -> Result<Vec<u8>, PolicyError> {
    let clang = compiler()?;
    let folder = tempfile::tempdir().map_err(PolicyError::Compiler)?;
    let (object, messages) = (folder.path().join("policy.o"), folder.path().join("messages"));
    fs::write(folder.path().join("aviary_policy.h"), HEADER).map_err(PolicyError::Compiler)?;
    let child = Command::new(clang)
        .args(["-target", "bpf", "-O2", "-mcpu=v3", "-g", "-std=gnu17", "-fno-builtin", "-ferror-limit=10"])
        // Figure 7 of the AvA paper leaves out types and a `return`.
        .args(["-Wno-implicit-int", "-Wno-return-type", "-c", "-o"])
        .arg(&object)
        .arg("-I")
        .arg(folder.path())
        .arg(source)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(File::create(&messages).map_err(PolicyError::Compiler)?)
        .spawn()
        .map_err(PolicyError::Compiler)?;
    match wait(child).map_err(PolicyError::Compiler)? {
        Some(status) if status.success() => fs::read(&object).map_err(PolicyError::Compiler),
        Some(_) => {
            let messages = fs::read(&messages).map_err(PolicyError::Compiler)?;
            let messages = CompilerMessages(String::from_utf8_lossy(&messages).into_owned());
            Err(PolicyError::Compile { path: source.to_owned(), messages })
        }
        None => {
            let messages = CompilerMessages(format!(
                "the compiler took longer than {} s and was ended",
                COMPILER_TIMEOUT.as_secs()
            ));
            Err(PolicyError::Compile { path: source.to_owned(), messages })
        }
    }
}

/// Waits for the compiler. `None`: it exceeded its time and was ended.
fn wait(mut child: Child) -> io::Result<Option<ExitStatus>> {
    let begin = Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if begin.elapsed() > COMPILER_TIMEOUT {
            child.kill()?;
            child.wait()?;
            return Ok(None);
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}
